//! Tests of the readiness, the halves, and the end of a stream.

use std::{
    future::{Future, poll_fn},
    io::ErrorKind,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, Ready};

use super::{
    REUNITE_ERROR_END, ReuniteError, Stream, delivered,
    lines::{ends, fresh_ends, run_on},
};

/// Runs a test on each kind of runtime.
fn run<F: Future<Output = ()>>(test: impl Fn() -> F) {
    run_on(1, Box::pin(test()));
    run_on(2, Box::pin(test()));
}

async fn pair() -> (Stream, Stream) {
    let (_listener, client, server) = ends().await;
    (client, server)
}

/// Polls the future once. Returns `true` if the future is not ready.
fn is_pending<F: Future>(future: Pin<&mut F>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    matches!(future.poll(&mut cx), Poll::Pending)
}

/// Reads until no bytes are left, which clears the read readiness. Returns the number of bytes
/// read.
fn clear_readable(stream: &Stream) -> usize {
    let (mut read, mut buffer) = (0, [0; 4096]);
    loop {
        match stream.try_read(&mut buffer) {
            Ok(0) => return read,
            Ok(count) => read += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return read;
            }
        }
    }
}

/// Repeats a read that finds no bytes, until the read clears the readiness. A read does not clear
/// the readiness if an event arrives during the read.
async fn refuse_reads(stream: &mut Stream, refuse: impl Fn(&mut Stream)) {
    for _ in 0..1000 {
        refuse(stream);
        if is_pending(pin!(stream.readable())) {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("a refusal must clear the readiness");
}

/// Writes until the stream is full, which clears the write readiness. Returns the number of bytes
/// written.
fn fill(stream: &Stream, chunk: &[u8]) -> usize {
    let mut written = 0;
    loop {
        match stream.try_write(chunk) {
            Ok(count) => written += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return written;
            }
        }
    }
}

#[test]
fn readable_waits_after_a_refusal_until_bytes_come() {
    run(|| async {
        let (client, server) = pair().await;
        for round in 0..3_u8 {
            clear_readable(&server);
            let mut waiting = pin!(server.readable());
            assert!(is_pending(waiting.as_mut()), "round {round}");
            client.writable().await.unwrap();
            assert_eq!(client.try_write(&[round; 3]).unwrap(), 3);
            waiting.await.unwrap();
            let mut one = [0];
            assert_eq!((server.try_read(&mut one).unwrap(), one), (1, [round]));
            // Two bytes are still unread.
            server.readable().await.unwrap();
            assert_eq!(clear_readable(&server), 2);
        }
    });
}

#[test]
fn writable_waits_after_a_refusal_until_there_is_room() {
    for chunk in [&[7; 1000][..], &[7; 100_000], &[7; 3_000_000]] {
        run(|| async {
            let (client, mut server) = pair().await;
            for _ in 0..2 {
                client.writable().await.unwrap();
                let mut written = fill(&client, chunk);
                // Fill the stream repeatedly, because the peer's kernel or library may accept more
                // bytes until its memory is full.
                let mut rounds = 0;
                while !is_pending(pin!(client.writable())) {
                    written += fill(&client, chunk);
                    rounds += 1;
                    assert!(
                        rounds < 1000,
                        "refused writes of {} bytes must clear the readiness",
                        chunk.len()
                    );
                }
                let waiting = client.writable();
                let reading = async {
                    let mut buffer = vec![0; 100_000];
                    let mut read = 0;
                    while read < written {
                        read += server.read(&mut buffer).await.unwrap();
                    }
                    read
                };
                let (room, read) = tokio::join!(waiting, reading);
                room.unwrap();
                assert_eq!(read, written);
                // The readiness may be outdated. A refused write clears it.
                while let Err(error) = client.try_write(b"more") {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    client.writable().await.unwrap();
                }
                written = server.read(&mut [0; 4]).await.unwrap();
                assert_eq!(written, 4);
            }
        });
    }
}

#[test]
fn only_an_accepted_stream_is_readable_at_first() {
    run(|| async {
        let (_listener, client, mut server) = fresh_ends().await;
        assert!(is_pending(pin!(client.readable())));
        assert!(is_pending(pin!(client.ready(Interest::READABLE))));
        for _ in 0..2 {
            assert!(!is_pending(pin!(server.readable())));
            assert_eq!(
                server.ready(Interest::READABLE).await.unwrap(),
                Ready::READABLE
            );
        }
        refuse_reads(&mut server, |server| assert_eq!(clear_readable(server), 0)).await;
        assert!(is_pending(pin!(server.ready(Interest::READABLE))));
    });
}

#[test]
fn readable_lasts_until_a_read_finds_nothing() {
    run(|| async {
        let (mut client, mut server) = pair().await;
        client.write_all(b"ping").await.unwrap();
        server.read_exact(&mut [0; 4]).await.unwrap();
        assert!(!is_pending(pin!(server.readable())));
        refuse_reads(&mut server, |server| assert_eq!(clear_readable(server), 0)).await;
        client.write_all(b"ping").await.unwrap();
        server.readable().await.unwrap();
        server.read_exact(&mut [0; 4]).await.unwrap();
        assert!(!is_pending(pin!(server.readable())));
        // A pending read clears the readiness, like a refused `try_read`.
        refuse_reads(&mut server, |server| {
            assert!(is_pending(pin!(server.read(&mut [0; 1]))));
        })
        .await;
    });
}

#[test]
fn writable_lasts_until_a_write_is_refused() {
    run(|| async {
        let (client, _server) = pair().await;
        loop {
            assert!(!is_pending(pin!(client.writable())));
            let ready = client.ready(Interest::WRITABLE).await.unwrap();
            assert_eq!(ready, Ready::WRITABLE);
            match client.try_write(&[7; 4000]) {
                Ok(count) => assert!(count > 0),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
    });
}

#[test]
fn ready_finds_bytes_while_the_stream_is_writable() {
    run(|| async {
        let (client, mut server) = pair().await;
        server.write_all(b"ping").await.unwrap();
        let both = Interest::READABLE.add(Interest::WRITABLE);
        let arrival = async {
            while !client.ready(both).await.unwrap().is_readable() {
                // Yield, so that the runtime polls for events.
                tokio::task::yield_now().await;
            }
        };
        let bound = Duration::from_secs(10);
        tokio::time::timeout(bound, arrival).await.unwrap();
        assert_eq!(client.try_read(&mut [0; 8]).unwrap(), 4);
    });
}

#[test]
fn several_tasks_wait_for_the_same_bytes() {
    run(|| async {
        let (mut client, server) = pair().await;
        let server = Arc::new(server);
        clear_readable(&server);
        let waiting: Vec<_> = (0..8)
            .map(|number| {
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    if number % 2 == 0 {
                        server.readable().await.unwrap();
                    }
                    let mut bytes = [0; 8];
                    let count = server.peek(&mut bytes).await.unwrap();
                    bytes[..count].to_vec()
                })
            })
            .collect();
        tokio::task::yield_now().await;
        client.write_all(b"for all").await.unwrap();
        for peeked in waiting {
            assert_eq!(peeked.await.unwrap(), b"for all");
        }
        assert_eq!(clear_readable(&server), 7);
    });
}

#[test]
fn ready_names_each_state_of_both_directions() {
    run(|| async {
        let (client, server) = pair().await;
        let both = Interest::READABLE.add(Interest::WRITABLE);
        client.writable().await.unwrap();
        clear_readable(&server);
        let states = server.ready(both).await.unwrap();
        assert!(states.is_writable() && !states.is_readable(), "{states:?}");
        let mut reading = pin!(server.ready(Interest::READABLE));
        assert!(is_pending(reading.as_mut()));
        assert_eq!(client.try_write(b"abc").unwrap(), 3);
        assert_eq!(reading.await.unwrap(), Ready::READABLE);
        let states = server.ready(both).await.unwrap();
        assert!(states.is_writable() && states.is_readable(), "{states:?}");
        drop(client);
        loop {
            clear_readable(&server);
            let states = server.ready(Interest::READABLE).await.unwrap();
            if states.is_read_closed() {
                break;
            }
            // Yield, so that the runtime polls for events.
            tokio::task::yield_now().await;
        }
        assert_eq!(server.try_read(&mut [0; 1]).unwrap(), 0);
    });
}

#[test]
fn the_end_stays_readable() {
    run(|| async {
        let (mut client, server) = pair().await;
        client.write_all(b"last").await.unwrap();
        drop(client);
        let mut got = Vec::new();
        loop {
            server.readable().await.unwrap();
            match server.try_read_buf(&mut got) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert_eq!(got, b"last");
        for _ in 0..3 {
            server.readable().await.unwrap();
            assert_eq!(server.try_read(&mut [0; 1]).unwrap(), 0);
            assert_eq!(server.peek(&mut [0; 1]).await.unwrap(), 0);
        }
    });
}

#[test]
fn the_last_task_that_polls_for_bytes_is_woken() {
    run(|| async {
        let (mut client, server) = pair().await;
        let server = Arc::new(server);
        clear_readable(&server);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(server.poll_read_ready(&mut cx).is_pending());
        let last = Arc::clone(&server);
        let (begins, begun) = tokio::sync::oneshot::channel();
        let mut begins = Some(begins);
        let waiting = tokio::spawn(poll_fn(move |cx| {
            let ready = last.poll_read_ready(cx);
            if let Some(begins) = begins.take() {
                begins.send(()).unwrap();
            }
            ready
        }));
        begun.await.unwrap();
        client.write_all(b"x").await.unwrap();
        waiting.await.unwrap().unwrap();
    });
}

#[test]
fn a_peek_waits_while_the_same_stream_writes() {
    run(|| async {
        let (client, server) = pair().await;
        let mut peeked = [0; 4];
        let (count, ()) = tokio::join!(client.peek(&mut peeked), async {
            client.writable().await.unwrap();
            assert_eq!(client.try_write(b"ping").unwrap(), 4);
            let mut got = [0; 4];
            server.readable().await.unwrap();
            assert_eq!(server.try_read(&mut got).unwrap(), 4);
            server.writable().await.unwrap();
            assert_eq!(server.try_write(&got).unwrap(), 4);
        });
        assert_eq!((count.unwrap(), &peeked), (4, b"ping"));
        let mut got = [0; 8];
        assert_eq!(
            client.try_read(&mut got).unwrap(),
            4,
            "the peek must consume no bytes"
        );
    });
}

#[test]
fn dropped_borrowed_halves_keep_the_stream_open() {
    run(|| async {
        let (mut client, mut server) = pair().await;
        for round in 0..2_u8 {
            let (mut read, mut write) = client.split();
            let mut got = [0];
            let echo = async {
                let byte = server.read_u8().await.unwrap();
                server.write_u8(byte).await.unwrap();
            };
            let (wrote, len, ()) = tokio::join!(write.write_u8(round), read.read(&mut got), echo);
            wrote.unwrap();
            assert_eq!((len.unwrap(), got), (1, [round]));
        }
        client.write_all(b"whole").await.unwrap();
        drop(client);
        let mut all = String::new();
        server.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "whole");
    });
}

#[test]
fn reunite_joins_only_halves_of_one_stream() {
    run(|| async {
        let (mut client, mut server) = pair().await;
        client.write_all(b"un").await.unwrap();
        let (client_read, client_write) = client.into_split();
        server.readable().await.unwrap();
        assert_eq!(server.try_read(&mut [0; 1]).unwrap(), 1);
        let (server_read, server_write) = server.into_split();
        let ReuniteError(client_read, server_write) =
            client_read.reunite(server_write).unwrap_err();
        let error = client_write.reunite(server_read).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("tried to reunite halves that are not {REUNITE_ERROR_END}")
        );
        let ReuniteError(server_read, client_write) = error;
        client = client_write.reunite(client_read).unwrap();
        server = server_read.reunite(server_write).unwrap();
        client.write_all(b"ited").await.unwrap();
        drop(client);
        let mut got = String::new();
        server.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "nited", "the unread byte must stay");
    });
}

#[test]
fn forgotten_write_half_ends_with_the_read_half() {
    run(|| async {
        let (client, mut server) = pair().await;
        let (read, mut write) = client.into_split();
        write.write_all(b"x").await.unwrap();
        write.forget();
        delivered(&read).await;
        assert_eq!(server.read_u8().await.unwrap(), b'x');
        let refused = server.try_read(&mut [0; 1]).unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::WouldBlock,
            "the stream must not end yet"
        );
        drop(read);
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    });
}

#[test]
fn a_dropped_writing_half_ends_its_direction() {
    run(|| async {
        let (client, mut server) = pair().await;
        let (mut read, mut write) = client.into_split();
        write.write_all(b"question").await.unwrap();
        drop(write);
        let mut question = String::new();
        server.read_to_string(&mut question).await.unwrap();
        assert_eq!(question, "question");
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut answer = String::new();
        read.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    });
}

#[test]
fn zero_linger_resets_the_connection() {
    run(|| async {
        for halves in [false, true] {
            let (client, mut server) = pair().await;
            client.set_zero_linger().unwrap();
            if halves {
                let (read, write) = client.into_split();
                write.forget();
                drop(read);
            } else {
                drop(client);
            }
            let error = server.read(&mut [0; 1]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
    });
}

#[test]
fn drop_without_zero_linger_delivers_all_bytes() {
    run(|| async {
        let (mut client, mut server) = pair().await;
        client.set_zero_linger().unwrap();
        #[allow(deprecated, reason = "tokio's method can block the thread")]
        client.set_linger(None).unwrap();
        client.write_all(b"all").await.unwrap();
        drop(client);
        let mut got = String::new();
        server.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "all");
    });
}
