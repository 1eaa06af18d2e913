//! Tests of the `poll_` methods and of the futures at the root of the crate. The tests use the
//! runtime smol.

use std::{
    future::poll_fn,
    io::IoSlice,
    net::Shutdown,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use rdmsg::{
    Addresses, CloseReason, Completion, Config, Connector, Endpoint, Error, Listener, Outgoing,
    SendBuffer, Stream, StreamListener, ToAddresses,
};
use smol::{Timer, block_on, future::or, spawn};

use super::{
    cut::drop_after_polls,
    stage::{
        TIME_LIMIT, as_number, bytes, connector, ip_and_transport, long_run, message, pair_with,
        small,
    },
};

async fn recv(endpoint: &Endpoint) -> Result<rdmsg::Message, Error> {
    poll_fn(|cx| endpoint.poll_recv(cx)).await
}

async fn send(endpoint: &Endpoint, message: &[u8]) -> Result<(), Error> {
    poll_fn(|cx| endpoint.poll_send(cx, message)).await
}

#[test]
fn messages_of_all_sizes_go_both_ways_at_once() {
    const MESSAGES: usize = 200;
    let (client, server) = pair_with(&small());
    block_on(async {
        let ends = [client, server].map(|end| {
            let sending = end.clone();
            let sender = spawn(async move {
                for number in 0..MESSAGES {
                    send(&sending, &message(number)).await.unwrap();
                }
                sending.finish().unwrap();
            });
            spawn(async move {
                for number in 0..MESSAGES {
                    assert_eq!(*recv(&end).await.unwrap(), message(number), "{number}");
                }
                assert!(matches!(recv(&end).await, Err(Error::PeerFinished)));
                sender.await;
                end
            })
        });
        for end in ends {
            end.await;
        }
    });
}

/// Each side writes and reads many bytes through two handles of its stream. A read that takes
/// longer than 2 ms is dropped. A half close ends each direction.
#[test]
fn duplex_stream_loses_nothing_if_reads_are_dropped() {
    let (rounds, len) = long_run();
    for _ in 0..rounds {
        full_duplex(len);
    }
}

fn full_duplex(len: usize) {
    let listener = StreamListener::bind((ip_and_transport().0, 0)).unwrap();
    let addr = listener.local_addr().unwrap();

    async fn write_all(stream: Stream, len: usize) {
        let mut written = 0;
        while written < len {
            let chunk = bytes(written, 50_001.min(len - written));
            let count = if written % 2 == 0 {
                poll_fn(|cx| stream.poll_write(cx, &chunk)).await
            } else {
                let (head, tail) = chunk.split_at(chunk.len() / 2);
                let parts = [IoSlice::new(head), IoSlice::new(tail)];
                poll_fn(|cx| stream.poll_write_vectored(cx, &parts)).await
            };
            written += count.unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
    }

    async fn read_all(stream: Stream, len: usize) {
        let mut read = 0;
        let mut buffer = vec![0; 30_000];
        loop {
            let reading = async { Some(poll_fn(|cx| stream.poll_read(cx, &mut buffer)).await) };
            let late = async {
                Timer::after(Duration::from_millis(2)).await;
                None
            };
            let Some(count) = or(reading, late).await else {
                continue;
            };
            let count = count.unwrap();
            if count == 0 {
                break;
            }
            assert!(buffer[..count] == bytes(read, count), "from {read}");
            read += count;
        }
        assert_eq!(read, len);
    }

    block_on(async {
        let connecting = connector().start_stream(addr).unwrap();
        let accepting = poll_fn(|cx| listener.poll_accept(cx));
        let (client, server) = smol::future::zip(connecting, accepting).await;
        let (server, peer) = server.unwrap();
        assert_eq!(server.peer_addr().unwrap(), peer);
        let mut tasks = Vec::new();
        for stream in [Stream::from(client.unwrap()), server] {
            assert_eq!(stream.transport(), ip_and_transport().1);
            tasks.push(spawn(write_all(stream.try_clone().unwrap(), len)));
            tasks.push(spawn(read_all(stream, len)));
        }
        for task in tasks {
            task.await;
        }
    });
}

#[test]
fn future_dropped_at_any_point_loses_nothing() {
    let (client, server) = pair_with(&small());
    block_on(async {
        for number in 0..200 {
            // Dropping a pending receive loses no message.
            let times = number as u32 % 4;
            let before = drop_after_polls(recv(&server), 0).await;
            assert!(before.is_none(), "no message was sent yet");
            // The window is two messages, and the grant for a received message may still be in
            // flight. A send may therefore wait. If the future of a waiting send is dropped, the
            // message is not sent.
            send(&client, &message(2 * number)).await.unwrap();
            let mut sent = 1;
            for part in 1..4 {
                let message = message(2 * number + part);
                match drop_after_polls(send(&client, &message), times).await {
                    Some(result) => result.unwrap(),
                    None => break,
                }
                sent += 1;
            }
            for part in 0..sent {
                let received = loop {
                    if let Some(received) = drop_after_polls(recv(&server), times).await {
                        break received.unwrap();
                    }
                    smol::future::yield_now().await;
                };
                assert_eq!(*received, message(2 * number + part));
            }
        }
    });
}

#[test]
fn send_buffer_keeps_message_until_it_is_sent() {
    let (client, server) = pair_with(&small());
    block_on(async {
        let mut sent = 0;
        let left = loop {
            let mut buffer = SendBuffer::new(&client, 32).unwrap();
            buffer.fill(sent);
            let sending = poll_fn(|cx| client.poll_send(cx, &mut buffer));
            match drop_after_polls(sending, 0).await {
                Some(result) => result.unwrap(),
                None => break buffer,
            }
            assert_eq!(buffer.len(), 0, "the send must empty the buffer");
            sent += 1;
        };
        let mut left = left;
        assert_eq!(*left, [sent; 32], "the buffer must keep an unsent message");
        for number in 0..sent {
            assert_eq!(*recv(&server).await.unwrap(), [number; 32]);
        }
        poll_fn(|cx| client.poll_send(cx, &mut left)).await.unwrap();
        assert_eq!(*recv(&server).await.unwrap(), [sent; 32]);
    });
}

#[test]
fn flushing_and_closing_are_futures_too() {
    let (client, server) = pair_with(&Config::default());
    block_on(async {
        let parts = [IoSlice::new(b"flu"), IoSlice::new(b"shed")];
        poll_fn(|cx| client.poll_send(cx, Outgoing::parts(&parts)))
            .await
            .unwrap();
        let batch = [IoSlice::new(b"two"), IoSlice::new(b"more")];
        assert_eq!(client.send_batch(&batch).unwrap(), 2);
        client.flushed().await.unwrap();
        client.send(Outgoing::from(b"reported").with_id(7)).unwrap();
        let completion = poll_fn(|cx| client.poll_next_completion(cx)).await;
        assert!(matches!(completion, Ok(Completion::Sent(7))));
        assert!(
            drop_after_polls(client.flushed(), 0)
                .await
                .is_none_or(|done| done.is_ok())
        );
        poll_fn(|cx| client.poll_close(cx)).await.unwrap();
        assert_eq!(*recv(&server).await.unwrap(), *b"flushed");
        assert_eq!(*recv(&server).await.unwrap(), *b"two");
        assert_eq!(*recv(&server).await.unwrap(), *b"more");
        assert_eq!(*recv(&server).await.unwrap(), *b"reported");
        assert!(matches!(
            recv(&server).await,
            Err(Error::Disconnected(CloseReason::PeerClosed))
        ));
    });
}

#[test]
fn reader_and_writer_wake_only_for_their_events() {
    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    let (client, server) = pair_with(&small());
    let [reader, writer] = [(); 2].map(|()| Arc::new(Count::default()));
    let [reads, writes] = [&reader, &writer].map(|count| Waker::from(Arc::clone(count)));
    let (mut read, mut write) = (Context::from_waker(&reads), Context::from_waker(&writes));
    while client.poll_send(&mut write, b"fills the window").is_ready() {}
    assert!(client.poll_recv(&mut read).is_pending());
    server.send(b"for the reader").unwrap();
    server.flush().unwrap();
    let woken = |count: &Count| count.0.load(Ordering::SeqCst);
    while woken(&reader) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(
        woken(&writer),
        0,
        "the writer must not wake while the window is full"
    );
    assert!(matches!(client.poll_recv(&mut read), Poll::Ready(Ok(_))));
    assert!(client.poll_recv(&mut read).is_pending());
    let before = woken(&reader);
    drop(server.recv().unwrap());
    drop(server.recv().unwrap());
    while woken(&writer) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(
        woken(&reader),
        before,
        "space in the window must not wake the reader"
    );
    drop(server);
    while woken(&reader) == before {
        std::thread::yield_now();
    }
}

#[test]
fn dropped_connect_future_ends_its_connection() {
    let listener = Listener::bind((ip_and_transport().0, 0)).unwrap();
    let addr = listener.local_addr();
    let engine = rdmsg::Engine::new().unwrap();
    let patient = Config::default().with(|c| c.connect_timeout = 2 * TIME_LIMIT);
    let connector = Connector::new().config(&patient).engine(&engine);
    block_on(async {
        for times in 0..4 {
            // On a busy machine, the connection may be established before the future is dropped.
            drop(drop_after_polls(connector.start(addr).unwrap(), times).await);
        }
        drop(connector.start(addr));
        // All connections of the engine must end before their connect timeout.
        engine.drain(TIME_LIMIT).unwrap();
    });
    // Some connections may have been established and then closed, so receives on them fail. The
    // listener must still accept a new connection.
    let connecting = std::thread::spawn(move || {
        let endpoint = super::stage::connector().connect(addr).unwrap();
        endpoint.send(b"wanted").unwrap();
        endpoint
    });
    while listener.accept().unwrap().recv().is_err() {}
    connecting.join().unwrap();
}

#[test]
fn closing_listener_wakes_accepting_task() {
    let listener = Arc::new(Listener::bind((ip_and_transport().0, 0)).unwrap());
    let accepting = Arc::clone(&listener);
    let task = spawn(async move { poll_fn(|cx| accepting.poll_accept(cx)).await });
    block_on(async {
        smol::future::yield_now().await;
        listener.close();
        assert!(matches!(task.await, Err(Error::ListenerClosed)));
    });
}

#[test]
fn connect_future_fails_without_listener() {
    let listener = Listener::bind((ip_and_transport().0, 0)).unwrap();
    let addr = listener.local_addr();
    drop(listener);
    let error = block_on(Connector::new().start(addr).unwrap()).unwrap_err();
    assert!(
        matches!(&error, Error::Connect { peer, .. } if *peer == addr),
        "{error}"
    );
}

/// An address whose host name must be resolved. The library must resolve the name on a separate
/// thread, because a lookup would block the task.
struct Elsewhere(String);

impl ToAddresses for Elsewhere {
    fn to_addresses(&self) -> Result<Addresses, Error> {
        panic!("the name was resolved in the task")
    }

    fn name(&self) -> Option<String> {
        Some(self.0.clone())
    }
}

#[test]
fn name_is_looked_up_in_another_thread() {
    let listener = Listener::bind((ip_and_transport().0, 0)).unwrap();
    // rdmsg treats this number as a host name. `getaddrinfo` resolves it without a name server.
    let name = as_number(listener.local_addr());
    block_on(async {
        let connecting = connector().start(Elsewhere(name)).unwrap();
        let client = spawn(connecting);
        let server = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
        send(&client.await.unwrap(), b"hello").await.unwrap();
        assert_eq!(*recv(&server).await.unwrap(), *b"hello");
    });
}

#[test]
fn unknown_name_fails_the_connect_future() {
    let more_lookups_than_threads: Vec<_> = (0..20)
        .map(|number| Connector::new().start(format!("no-such-host-{number}.invalid:1")))
        .collect();
    for connecting in more_lookups_than_threads {
        let error = block_on(connecting.unwrap()).unwrap_err();
        assert!(matches!(error, Error::AddressLookup { .. }), "{error:?}");
    }
    // Drop a future before its lookup completes.
    drop(Connector::new().start("no-such-host.invalid:1").unwrap());
    let refused = Connector::new().start("no port");
    assert!(matches!(refused, Err(Error::AddressLookup { .. })));
}
