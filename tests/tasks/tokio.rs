//! Tests of the types for tokio, on its current-thread and its multi-thread runtime.

use std::{
    future::poll_fn,
    io::{ErrorKind, IoSlice},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{SinkExt, StreamExt, TryStreamExt};
use rdmsg::{
    CloseReason, Completion, Config, Connector, Engine, Error, Outgoing, SendBuffer,
    tokio::{Endpoint, Listener, OwnedReadHalf, OwnedWriteHalf, Stream, StreamListener},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    runtime::{Builder, Runtime},
    task::coop::unconstrained,
    time::{sleep, timeout},
};
use tokio_util::{
    bytes::Bytes,
    codec::{Framed, LengthDelimitedCodec},
};

use super::{
    cut::drop_after_polls,
    stage::{
        as_number, bytes, connector, ip_and_transport, long_run, message, small,
        with_time_to_connect,
    },
};

/// Runs a future on each kind of runtime.
pub(super) fn on_each<F: Future<Output = ()>>(run: impl Fn() -> F) {
    runtime(false).block_on(run());
    runtime(true).block_on(run());
}

fn runtime(multi: bool) -> Runtime {
    let mut builder = if multi {
        Builder::new_multi_thread()
    } else {
        Builder::new_current_thread()
    };
    builder.worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn task_gets_control_message_with_a_full_window() {
    on_each(async || {
        let (client, server) = endpoints(&small()).await;
        let mut held = Vec::new();
        while client.get_ref().try_send(b"request").is_ok() {
            match server.next_completion().await.unwrap() {
                Completion::Received(request) => held.push(request),
                other => panic!("{other:?}"),
            }
        }
        client.get_ref().send_control(b"cancel").unwrap();
        match server.next_completion().await.unwrap() {
            Completion::Control(notice) => assert_eq!(notice, b"cancel"),
            other => panic!("{other:?}"),
        }
        drop(held);
        client.send(b"request").await.unwrap();
        // Dropping a future loses no control message.
        client.get_ref().send_control(b"cancel").unwrap();
        client.flush().await.unwrap();
        assert_eq!(server.recv().await.unwrap(), b"request");
        drop(server.recv());
        match server.next_completion().await.unwrap() {
            Completion::Control(notice) => assert_eq!(notice, b"cancel"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn task_receives_peer_leaving() {
    on_each(async || {
        let (client, server) = endpoints(&small()).await;
        server.get_ref().ask_to_leave().unwrap();
        let completion = client.next_completion().await.unwrap();
        assert!(
            matches!(completion, Completion::PeerLeaving),
            "{completion:?}"
        );
        client.send(b"goes on").await.unwrap();
        assert_eq!(server.recv().await.unwrap(), b"goes on");
    });
}

#[test]
fn stream_takes_no_control_messages() {
    on_each(async || {
        let (near, _far) = Stream::pair().unwrap();
        let refused = near.endpoint().send_control(b"x").unwrap_err();
        assert!(matches!(refused, Error::NotSupported { .. }), "{refused}");
        let refused = near.endpoint().ask_to_leave().unwrap_err();
        assert!(matches!(refused, Error::NotSupported { .. }), "{refused}");
    });
}

async fn endpoints(config: &Config) -> (Endpoint, Endpoint) {
    let engine = Engine::shared().unwrap();
    let config = &with_time_to_connect(config);
    let listener = rdmsg::Listener::builder()
        .config(config)
        .engine(&engine)
        .bind((ip_and_transport().0, 0))
        .unwrap();
    let listener = Listener::from(listener);
    let connector = Connector::new().config(config);
    let connecting = Endpoint::connect_with(&connector, listener.local_addr());
    let (connected, accepted) = tokio::join!(connecting, listener.accept());
    let (connected, accepted) = (connected.unwrap(), accepted.unwrap());
    assert_eq!(
        connected.get_ref().info().transport,
        ip_and_transport().1,
        "the connection must use the expected transport"
    );
    (connected, accepted)
}

pub(super) async fn streams() -> (Stream, Stream) {
    let listener = StreamListener::bind((ip_and_transport().0, 0))
        .await
        .unwrap();
    let connector = connector();
    let connecting = Stream::connect_with(&connector, listener.local_addr().unwrap());
    let (connected, accepted) = tokio::join!(connecting, listener.accept());
    let (accepted, peer) = accepted.unwrap();
    assert_eq!(accepted.peer_addr().unwrap(), peer);
    (connected.unwrap(), accepted)
}

#[test]
fn messages_of_all_sizes_go_both_ways_at_once() {
    const MESSAGES: usize = 200;
    on_each(|| async {
        let (client, server) = endpoints(&small()).await;
        let mut tasks = Vec::new();
        for end in [client, server] {
            let (mut receiving, mut sending) = end.into_split();
            tasks.push(tokio::spawn(async move {
                for number in 0..MESSAGES {
                    sending.send(&message(number)).await.unwrap();
                }
            }));
            tasks.push(tokio::spawn(async move {
                for number in 0..MESSAGES {
                    let received = receiving.recv().await.unwrap();
                    assert_eq!(*received, message(number), "{number}");
                }
                let end = receiving.recv().await;
                assert!(matches!(end, Err(Error::PeerFinished)), "{end:?}");
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

async fn write_all(mut half: OwnedWriteHalf, len: usize) {
    let mut written = 0;
    while written < len {
        let chunk = bytes(written, 70_001.min(len - written));
        half.write_all(&chunk).await.unwrap();
        written += chunk.len();
    }
    half.shutdown().await.unwrap();
}

async fn read_all(mut half: OwnedReadHalf, len: usize) {
    let mut read = 0;
    let mut buffer = vec![0; 30_000];
    loop {
        // The timeout drops about half of the reads, each at a different point.
        let Ok(count) = timeout(Duration::from_millis(2), half.read(&mut buffer)).await else {
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

/// Each side writes and reads many bytes through the halves of its stream. A read that takes longer
/// than 2 ms is dropped. A half close ends each direction.
#[test]
fn duplex_stream_loses_nothing_if_reads_are_dropped() {
    let (rounds, len) = long_run();
    for _ in 0..rounds {
        on_each(|| async {
            let (client, server) = streams().await;
            let mut tasks = Vec::new();
            for stream in [client, server] {
                let (read, write) = stream.into_split();
                tasks.push(tokio::spawn(write_all(write, len)));
                tasks.push(tokio::spawn(read_all(read, len)));
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
    }
}

#[test]
fn future_dropped_at_any_point_loses_nothing() {
    // `unconstrained` disables tokio's budget, which would make more polls return pending.
    on_each(|| {
        unconstrained(async {
            let (client, server) = endpoints(&small()).await;
            for number in 0..100 {
                let times = number as u32 % 4;
                assert!(
                    drop_after_polls(server.recv(), 0).await.is_none(),
                    "no message was sent"
                );
                assert!(
                    drop_after_polls(server.next_completion(), times)
                        .await
                        .is_none()
                );
                // The grant for a received message may still be in flight, so the send may have to
                // wait.
                client.send(&message(2 * number)).await.unwrap();
                let mut sent = 1;
                for part in 1..4 {
                    match drop_after_polls(client.send(&message(2 * number + part)), times).await {
                        Some(result) => result.unwrap(),
                        None => break,
                    }
                    sent += 1;
                }
                let mut buffer = SendBuffer::new(client.get_ref(), 64).unwrap();
                buffer.fill(7);
                let owned = drop_after_polls(client.send(buffer), times).await;
                let _ = drop_after_polls(client.flush(), times).await;
                for part in 0..sent {
                    let received = loop {
                        if let Some(received) = drop_after_polls(server.recv(), times).await {
                            break received.unwrap();
                        }
                        tokio::task::yield_now().await;
                    };
                    assert_eq!(*received, message(2 * number + part));
                }
                if owned.is_some() {
                    assert_eq!(*server.recv().await.unwrap(), [7; 64]);
                }
            }
            let _ = drop_after_polls(client.close(), 0).await;
            let end = server.recv().await;
            assert!(
                matches!(end, Err(Error::Disconnected(CloseReason::PeerClosed))),
                "the dropped close must continue: {end:?}"
            );
        })
    });
}

#[test]
fn dropped_accept_and_connect_leak_no_connection() {
    on_each(|| async {
        let engine = Engine::new().unwrap();
        let listener = rdmsg::Listener::builder()
            .engine(&engine)
            .bind((ip_and_transport().0, 0))
            .unwrap();
        let listener = Listener::from(listener);
        let addr = listener.local_addr();
        let connector = connector();
        for times in 0..4 {
            assert!(drop_after_polls(listener.accept(), times).await.is_none());
        }
        let connecting = tokio::spawn(async move {
            for times in 0..4 {
                // On a busy machine, the connection may be established before the future is
                // dropped. In this case, the endpoint is dropped.
                let connecting = Endpoint::connect_with(&connector, addr);
                drop(drop_after_polls(connecting, times).await);
            }
            let endpoint = Endpoint::connect_with(&connector, addr).await.unwrap();
            endpoint.send(b"wanted").await.unwrap();
            endpoint.flush().await.unwrap();
        });
        let _accepted = loop {
            let Some(accepted) = drop_after_polls(listener.accept(), 2).await else {
                tokio::task::yield_now().await;
                continue;
            };
            let accepted = accepted.unwrap();
            // The connections of dropped endpoints are closed, so receives on them fail.
            if accepted.recv().await.is_ok() {
                break accepted;
            }
        };
        connecting.await.unwrap();
    });
}

#[test]
fn several_tasks_may_wait_on_clones() {
    on_each(|| async {
        let (client, server) = endpoints(&Config::default()).await;
        let receivers: Vec<_> = (0..8)
            .map(|_| {
                let server = server.clone();
                tokio::spawn(async move { server.recv().await.unwrap().len() })
            })
            .collect();
        for len in 1..=8 {
            client.send(&vec![0; len]).await.unwrap();
        }
        let mut lens = Vec::new();
        for receiver in receivers {
            lens.push(receiver.await.unwrap());
        }
        lens.sort_unstable();
        assert_eq!(lens, [1, 2, 3, 4, 5, 6, 7, 8]);
    });
}

#[test]
fn busy_connection_does_not_starve_other_tasks() {
    let (client, server) = runtime(false).block_on(async {
        let (client, server) = endpoints(&Config::default()).await;
        (client.into_inner(), server.into_inner())
    });
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let flood = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            if client.send(b"more").is_err() {
                break;
            }
        }
    });
    runtime(false).block_on(async {
        let server = Endpoint::new(server).unwrap();
        let receiving = tokio::spawn(async move { while server.recv().await.is_ok() {} });
        for _ in 0..20 {
            sleep(Duration::from_millis(1)).await;
        }
        stop.store(true, Ordering::Relaxed);
        receiving.await.unwrap();
    });
    flood.join().unwrap();
}

#[test]
fn messages_are_a_stream_and_a_sink() {
    on_each(|| async {
        let (client, server) = endpoints(&small()).await;
        let sink = client.into_split().1.into_sink();
        let sending = tokio::spawn(async move {
            let mut sink = sink;
            let mut messages =
                futures_util::stream::iter((0..100).map(|number| Ok(message(number))));
            sink.send_all(&mut messages).await.unwrap();
            sink.feed(message(100)).await.unwrap();
            sink.close().await.unwrap();
            sink
        });
        let (mut receiving, _sending) = server.into_split();
        let mut count = 0;
        while let Some(received) = receiving.next().await {
            assert_eq!(*received.unwrap(), message(count));
            count += 1;
        }
        assert_eq!(count, 101);
        assert!(
            receiving.next().await.is_none(),
            "a stream that has ended must stay ended"
        );
        sending.await.unwrap();
    });
}

#[test]
fn stream_ends_with_error_unless_peer_closed() {
    on_each(|| async {
        let (client, server) = endpoints(&Config::default()).await;
        client.get_ref().abort(7);
        let (receiving, _sending) = server.into_split();
        let received: Result<Vec<_>, _> = receiving.try_collect().await;
        assert!(
            matches!(
                received,
                Err(Error::Disconnected(CloseReason::PeerAborted(7)))
            ),
            "{received:?}"
        );
    });
}

#[test]
fn task_receives_completions_with_ids() {
    on_each(|| async {
        let (client, server) = endpoints(&Config::default()).await;
        for id in 0..10 {
            client
                .send(Outgoing::from(b"reported").with_id(id))
                .await
                .unwrap();
        }
        client.flush().await.unwrap();
        for id in 0..10 {
            let completion = client.next_completion().await.unwrap();
            assert!(matches!(completion, Completion::Sent(sent) if sent == id));
        }
        for _ in 0..10 {
            server.recv().await.unwrap();
        }
        let (closed, end) = tokio::join!(client.close(), server.recv());
        closed.unwrap();
        assert!(matches!(
            end,
            Err(Error::Disconnected(CloseReason::PeerClosed))
        ));
    });
}

/// The client writes between its reads, like an HTTP/2 program that confirms received data.
#[test]
fn writer_reads_everything_written_before_peer_close() {
    on_each(|| async {
        let (mut client, mut server) = streams().await;
        server.write_all(&bytes(0, 100_000)).await.unwrap();
        drop(server);
        while client.endpoint().info().close_reason.is_none() {
            tokio::task::yield_now().await;
        }
        let mut got = vec![0; 100_000];
        for piece in got.chunks_mut(10_000) {
            client.write_all(b"go on").await.unwrap();
            client.read_exact(piece).await.unwrap();
        }
        assert!(got == bytes(0, 100_000));
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        let error = client.write_all(b"go on").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn lines_and_frames_are_read_as_from_a_socket() {
    on_each(|| async {
        let (mut client, mut server) = streams().await;
        client.write_all(b"one\ntwo\nthree").await.unwrap();
        let mut line = String::new();
        server.read_line(&mut line).await.unwrap();
        assert_eq!(line, "one\n");
        let mut peeked = [0; 3];
        assert_eq!(server.peek(&mut peeked).await.unwrap(), 3);
        assert_eq!(peeked, *b"two");
        client.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let mut lines = BufReader::new(server).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            rest.push(line);
        }
        assert_eq!(rest, ["two", "three"]);
        let error = client.write_all(b"after its end").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);

        let (client, server) = streams().await;
        let mut client = Framed::new(client, LengthDelimitedCodec::new());
        let mut server = Framed::new(server, LengthDelimitedCodec::new());
        let sending = tokio::spawn(async move {
            for number in 0..100 {
                client.send(Bytes::from(message(number))).await.unwrap();
            }
            client
        });
        for number in 0..100 {
            let frame = server.next().await.unwrap().unwrap();
            assert_eq!(*frame, message(number));
        }
        drop(sending.await.unwrap());
        assert!(server.next().await.is_none());
    });
}

#[test]
fn reunite_joins_only_halves_of_one_stream() {
    on_each(|| async {
        let (client, server) = streams().await;
        let (client_read, client_write) = client.into_split();
        let (server_read, server_write) = server.into_split();
        let error = client_read.reunite(server_write).unwrap_err();
        assert!(error.to_string().contains("not of the same stream"));
        let rdmsg::tokio::ReuniteError(client_read, server_write) = error;
        let mut client = client_read.reunite(client_write).unwrap();
        let mut server = server_read.reunite(server_write).unwrap();
        client.write_all(b"whole").await.unwrap();
        drop(client);
        let mut got = String::new();
        server.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "whole");
    });
}

#[test]
fn vanished_peer_is_error_and_not_end_of_file() {
    on_each(|| async {
        let (client, mut server) = streams().await;
        client.endpoint().abort(3);
        let error = server.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
}

#[test]
fn connection_moves_between_runtimes_and_threads() {
    let first = runtime(true);
    let (client, server) = first.block_on(endpoints(&Config::default()));
    // Drop a runtime while one of its tasks waits for the connection.
    let waiting = server.clone();
    first.spawn(async move { waiting.recv().await });
    drop(first);
    let inner = server.get_ref().clone();
    client.get_ref().send(b"to a thread").unwrap();
    assert_eq!(*inner.recv().unwrap(), *b"to a thread");
    // The connection belongs to no runtime now, so the engine polls it.
    client.get_ref().send(b"to any executor").unwrap();
    let received = smol::block_on(poll_fn(|cx| inner.poll_recv(cx)));
    assert_eq!(*received.unwrap(), *b"to any executor");
    runtime(false).block_on(async {
        let server = Endpoint::new(inner).unwrap();
        let (sent, received) = tokio::join!(
            async { client.get_ref().try_send(b"to the other") },
            server.recv()
        );
        sent.unwrap();
        assert_eq!(*received.unwrap(), *b"to the other");
    });
}

#[test]
fn connection_survives_a_blocked_runtime() {
    let mut config = Config::default();
    config.keepalive_interval = Some(Duration::from_millis(100));
    config.keepalive_timeout = Duration::from_millis(1000);
    let runtime = runtime(false);
    let (client, server) = runtime.block_on(async {
        let (client, server) = endpoints(&config).await;
        // Poll the receive, so that the runtime watches the connection.
        assert!(drop_after_polls(server.recv(), 1).await.is_none());
        (client.into_inner(), server)
    });
    // For longer than `keepalive_timeout`, no thread drives the runtime.
    let silence = client.recv_timeout(Duration::from_millis(2500));
    assert!(matches!(silence, Err(Error::TimedOut)), "{silence:?}");
    client.send(b"still there").unwrap();
    let received = runtime.block_on(server.recv());
    assert_eq!(*received.unwrap(), *b"still there");
}

#[test]
fn closing_listener_wakes_all_accepting_tasks() {
    on_each(|| async {
        let listener = Arc::new(Listener::bind((ip_and_transport().0, 0)).await.unwrap());
        let accepting: Vec<_> = (0..3)
            .map(|_| {
                let listener = Arc::clone(&listener);
                tokio::spawn(async move { listener.accept().await.map(drop) })
            })
            .collect();
        tokio::task::yield_now().await;
        listener.close();
        for task in accepting {
            assert!(matches!(task.await.unwrap(), Err(Error::ListenerClosed)));
        }
    });
}

#[test]
fn missing_address_is_named_in_error() {
    on_each(|| async {
        let none: &[std::net::SocketAddr] = &[];
        let error = Endpoint::connect(none).await.unwrap_err();
        let text = "cannot look up the address []: the name has no address";
        assert_eq!(error.to_string(), text);
    });
}

#[test]
#[should_panic(expected = "no reactor running")]
fn new_endpoint_panics_without_a_runtime() {
    let (client, _server) = super::stage::pair_with(&Config::default());
    let _ = Endpoint::new(client);
}

#[test]
fn batch_waits_for_room_and_dropped_batch_is_unsent() {
    on_each(|| async {
        let (client, server) = endpoints(&small()).await;
        let numbers: Vec<_> = (0..200_u32).map(u32::to_be_bytes).collect();
        let batch: Vec<_> = numbers.iter().map(|number| IoSlice::new(number)).collect();
        let expected = numbers.clone();
        let receiving = tokio::spawn(async move {
            for number in expected {
                assert_eq!(*server.recv().await.unwrap(), number);
            }
            server
        });
        assert_eq!(client.send_batch(&[]).await.unwrap(), 0);
        let mut sent = 0;
        for round in 0.. {
            if sent == batch.len() {
                break;
            }
            let sending = client.send_batch(&batch[sent..]);
            if round % 2 == 1 {
                sent += sending.await.unwrap();
            } else if let Some(some) = drop_after_polls(sending, round % 3).await {
                sent += some.unwrap();
            }
        }
        let server = receiving.await.unwrap();
        client.close().await.unwrap();
        drop(server);
    });
}

#[test]
fn listener_bind_resolves_a_host_name() {
    on_each(|| async {
        let name = as_number((ip_and_transport().0, 0).into());
        let listener = StreamListener::bind(name).await.unwrap();
        let connector = connector();
        let connecting = Stream::connect_with(&connector, listener.local_addr().unwrap());
        let (accepted, connected) = tokio::join!(listener.accept(), connecting);
        assert_eq!(
            accepted.unwrap().0.peer_addr().unwrap(),
            connected.unwrap().local_addr().unwrap()
        );
        let name = as_number((ip_and_transport().0, 0).into());
        let listener = Listener::bind(name).await.unwrap();
        let near = Endpoint::connect_with(&connector, listener.local_addr())
            .await
            .unwrap();
        let far = listener.accept().await.unwrap();
        assert_eq!(far.peer_addr(), near.get_ref().info().local_addr);
        let unknown = "no-such-host.invalid:0";
        assert!(StreamListener::bind(unknown).await.is_err());
        let error = Listener::bind(unknown).await.unwrap_err();
        assert!(matches!(error, Error::AddressLookup { .. }), "{error}");
    });
}

#[test]
fn one_task_binds_connects_and_accepts() {
    on_each(|| async {
        let listener = Listener::bind((ip_and_transport().0, 0)).await.unwrap();
        let connector = connector();
        let near = Endpoint::connect_with(&connector, listener.local_addr())
            .await
            .unwrap();
        near.send(b"early").await.unwrap();
        let far = listener.accept().await.unwrap();
        assert_eq!(far.recv().await.unwrap(), b"early");

        let listener = StreamListener::bind((ip_and_transport().0, 0))
            .await
            .unwrap();
        let mut near = Stream::connect_with(&connector, listener.local_addr().unwrap())
            .await
            .unwrap();
        near.write_all(b"early").await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 5];
        far.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"early");
    });
}
