//! Tests of connections that move from one runtime to another, to threads, or to an event loop.

use std::{
    future::poll_fn,
    io::{self, Read, Write},
    sync::mpsc,
    task::Poll,
    thread,
    time::Duration,
};

use common::patient;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdmsg::{
    CloseReason, Config, Connector, Error, Interest, Listener,
    tokio::{Endpoint as TaskEndpoint, Stream as TaskStream},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
    time::timeout,
};

use crate::stage::{
    PROMPT, Stage, TIME_LIMIT, flush_promptly, ip_and_transport, receive_all, runtime, unprobed,
};

/// Writes bytes and waits for their echo. The peer sends the echo only after this wait has started.
async fn exchange(stream: &mut TaskStream, go: &mpsc::Sender<()>) -> io::Result<()> {
    stream.write_all(b"hello").await?;
    let mut bytes = [0; 5];
    let begin = async {
        yield_now().await;
        let _ = go.send(());
    };
    let (read, ()) = tokio::join!(stream.read_exact(&mut bytes), begin);
    read?;
    assert_eq!(bytes, *b"hello");
    Ok(())
}

#[test]
fn uses_a_stream_whose_runtime_is_gone() {
    for multi in [false, true] {
        let builder = Listener::builder().config(&unprobed());
        let listener = builder.bind_stream((ip_and_transport().0, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let connector = Connector::new().config(&unprobed());
        let first = runtime(multi);
        let connecting = async move { TaskStream::connect_with(&connector, addr).await.unwrap() };
        let connecting = first.spawn(connecting);
        let accepting = thread::spawn(move || listener.accept().unwrap().0);
        let mut stream = first.block_on(connecting).unwrap();
        let (mut peer, (go, wait)) = (accepting.join().unwrap(), mpsc::channel());
        let echo = thread::spawn(move || {
            let mut bytes = [0; 5];
            while peer.read_exact(&mut bytes).is_ok() {
                // Send the echo only after `exchange` has started to wait for it.
                if wait.recv().is_err() || peer.write_all(&bytes).is_err() {
                    break;
                }
            }
        });
        first.block_on(async {
            exchange(&mut stream, &go).await.unwrap();
            // Let a read wait on the first runtime, until the timeout cancels the read.
            let read = timeout(Duration::from_millis(10), stream.read(&mut [0])).await;
            assert!(read.is_err());
        });
        drop(first);
        for multi in [false, true, false] {
            runtime(multi).block_on(async {
                let exchanged = timeout(PROMPT, exchange(&mut stream, &go)).await;
                // The exchange must return, but may fail. tokio's own streams also fail after their
                // runtime has been dropped.
                let _ = exchanged.expect("the exchange must return in time");
            });
        }
        drop((stream, go));
        echo.join().unwrap();
    }
}

#[test]
fn receives_in_a_runtime_next_to_an_idle_one() {
    let stage = Stage::new(&unprobed());
    let (near, far) = stage.pair(&unprobed());
    let idle = runtime(false);
    let far = idle.block_on(async { TaskEndpoint::new(far).unwrap() });
    for (number, multi) in [(0_u8, false), (1, true)] {
        let second = runtime(multi);
        let near = near.clone();
        second.block_on(async {
            let receive = timeout(PROMPT, far.recv());
            let send = async {
                yield_now().await;
                near.send(&[number]).unwrap();
            };
            let (received, ()) = tokio::join!(receive, send);
            assert_eq!(
                *received.expect("the task must be woken").unwrap(),
                [number]
            );
        });
        flush_promptly(&near, 3);
        // The idle runtime receives messages that arrived while no thread drove this runtime.
        idle.block_on(async {
            for number in 0..3_usize {
                let received = timeout(PROMPT, far.recv())
                    .await
                    .expect("the task must be woken");
                assert_eq!(*received.unwrap(), number.to_le_bytes());
            }
        });
    }
}

#[test]
fn moves_between_threads_tasks_and_epoll() {
    const COUNT: usize = 20;
    let stage = Stage::new(&unprobed());
    let (near, far) = stage.pair(&unprobed());
    let (turn, turns) = mpsc::channel();
    let sending = near.clone();
    let sender = thread::spawn(move || {
        for () in turns {
            flush_promptly(&sending, COUNT);
        }
    });
    let check = |received: Result<rdmsg::Message, Error>, number: usize| {
        assert_eq!(*received.unwrap(), number.to_le_bytes());
    };
    for _ in 0..3 {
        turn.send(()).unwrap();
        for number in 0..COUNT {
            check(far.recv_timeout(PROMPT), number);
        }
        turn.send(()).unwrap();
        runtime(false).block_on(async {
            let endpoint = TaskEndpoint::new(far.clone()).unwrap();
            for number in 0..COUNT {
                check(timeout(PROMPT, endpoint.recv()).await.unwrap(), number);
            }
        });
        turn.send(()).unwrap();
        smol::block_on(async {
            for number in 0..COUNT {
                check(poll_fn(|cx| far.poll_recv(cx)).await, number);
            }
        });
        turn.send(()).unwrap();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let fd = far.event_fd(Interest::Readable).unwrap();
        epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .unwrap();
        let mut number = 0;
        while number < COUNT {
            let wait = EpollTimeout::try_from(PROMPT).unwrap();
            let count = epoll.wait(&mut [EpollEvent::empty()], wait).unwrap();
            assert_eq!(count, 1, "message {number} must make the fd readable");
            while let Some(message) = far.try_recv().unwrap() {
                check(Ok(message), number);
                number += 1;
            }
        }
    }
    drop(turn);
    sender.join().unwrap();
    let closing = thread::spawn(move || near.close());
    let end = far.recv_timeout(PROMPT);
    assert!(matches!(
        end,
        Err(Error::Disconnected(CloseReason::PeerClosed))
    ));
    closing.join().unwrap().unwrap();
}

#[test]
fn polls_connections_whose_runtime_is_dropped() {
    for multi in [false, true] {
        let stage = Stage::new(&unprobed());
        let runtime = runtime(multi);
        let pairs: Vec<_> = (0..10).map(|_| stage.pair(&unprobed())).collect();
        for (_, far) in &pairs {
            runtime.block_on(receive_all(far.clone()));
        }
        // `pairs` contains further handles, which keep the connections open.
        drop(runtime);
        for (near, _) in &pairs {
            flush_promptly(near, 10);
        }
        for (near, far) in pairs {
            near.close().unwrap();
            let mut count = 0;
            let end = loop {
                match far.recv_timeout(TIME_LIMIT) {
                    Ok(_) => count += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(count, 10, "{end}");
        }
    }
}

#[test]
fn wakes_another_task_if_the_woken_one_is_dropped() {
    let stage = Stage::new(&unprobed());
    let (near, far) = stage.pair(&unprobed());
    runtime(false).block_on(async {
        let far = TaskEndpoint::new(far).unwrap();
        for number in 0..100_usize {
            let mut first = Box::pin(far.recv());
            let mut others: Vec<_> = (0..4).map(|_| Box::pin(far.recv())).collect();
            let mut pending = 0;
            poll_fn(|cx| {
                for future in std::iter::once(&mut first).chain(&mut others) {
                    pending += usize::from(future.as_mut().poll(cx).is_pending());
                }
                Poll::Ready(())
            })
            .await;
            assert_eq!(pending, 5);
            let task = tokio::spawn({
                let far = far.clone();
                async move { far.recv().await.unwrap().to_vec() }
            });
            yield_now().await;
            let sending = near.clone();
            let sent = tokio::task::spawn_blocking(move || {
                sending.send(&number.to_le_bytes()).unwrap();
                sending
            });
            drop(first);
            sent.await.unwrap();
            drop(others);
            let received = timeout(PROMPT, task)
                .await
                .expect("the task must be woken")
                .unwrap();
            assert_eq!(received, number.to_le_bytes());
        }
    });
}

#[test]
fn connects_from_a_runtime_that_is_dropped() {
    let stage = Stage::new(&unprobed());
    let addr = stage.listener.local_addr();
    let first = runtime(false);
    let connector = Connector::new().config(&patient(&Config::default()));
    let mut connecting = Box::pin(connector.start(addr).unwrap());
    first.block_on(async {
        let polled = poll_fn(|cx| Poll::Ready(connecting.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
    });
    drop(first);
    let accepting = thread::spawn(move || stage.listener.accept_timeout(TIME_LIMIT).unwrap());
    // The future may still have to try the second transport, so another runtime must poll it.
    let connected = runtime(false).block_on(async { timeout(PROMPT, connecting).await.unwrap() });
    connected.unwrap().send(b"hello").unwrap();
    let accepted = accepting.join().unwrap();
    assert_eq!(*accepted.recv_timeout(PROMPT).unwrap(), *b"hello");
}
