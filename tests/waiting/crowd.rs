//! Tests with many concurrent users of one connection, and with many connections.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use rdmsg::{
    CloseReason, Completion, Config, Connector, Engine, Error, Listener, Message, Transport,
    tokio::{Endpoint as TaskEndpoint, Listener as TaskListener},
};
use tokio::time::timeout;

use crate::stage::{Stage, TIME_LIMIT, ip_and_transport, runtime, unprobed};

/// The numbers of the received messages.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeSet<u32>>>);

impl Seen {
    fn note(&self, message: &Message) {
        let number = u32::from_le_bytes(message[..].try_into().unwrap());
        assert!(
            self.0.lock().unwrap().insert(number),
            "message {number} arrived twice"
        );
    }

    fn assert_all(&self, count: u32) {
        let seen = self.0.lock().unwrap();
        assert!(
            seen.iter().copied().eq(0..count),
            "{} of {count} messages arrived",
            seen.len()
        );
    }
}

fn is_end(error: &Error) -> bool {
    matches!(error, Error::Disconnected(CloseReason::PeerClosed))
}

/// Sends `count` numbered messages, closes the connection, and waits until all receiving threads
/// and tasks have ended.
fn send_to_all(near: &rdmsg::Endpoint, count: u32, ended: &mpsc::Receiver<()>) {
    for number in 0..count {
        near.send(&number.to_le_bytes()).unwrap();
    }
    near.close().unwrap();
    let woken = ended.recv_timeout(TIME_LIMIT).unwrap_err();
    assert_eq!(
        woken,
        mpsc::RecvTimeoutError::Disconnected,
        "the end of the connection must wake all receivers"
    );
}

#[test]
fn receives_each_message_once_in_64_threads() {
    const COUNT: u32 = 5000;
    let stage = Stage::new(&unprobed());
    let (near, far) = stage.pair(&unprobed());
    let (ended, all_ended) = mpsc::channel();
    let seen = Seen::default();
    for _ in 0..64 {
        let (far, seen, ended) = (far.clone(), seen.clone(), ended.clone());
        thread::spawn(move || {
            let _ended: mpsc::Sender<()> = ended;
            loop {
                match far.recv() {
                    Ok(message) => seen.note(&message),
                    Err(error) => {
                        assert!(is_end(&error), "{error}");
                        break;
                    }
                }
            }
        });
    }
    drop(ended);
    send_to_all(&near, COUNT, &all_ended);
    seen.assert_all(COUNT);
}

#[test]
fn receives_each_message_once_in_threads_and_tasks() {
    const COUNT: u32 = 3000;
    const SHORT: Duration = Duration::from_millis(1);
    let stage = Stage::new(&unprobed());
    let (near, far) = stage.pair(&unprobed());
    let (ended, all_ended) = mpsc::channel::<()>();
    let seen = Seen::default();
    let runtimes = [runtime(true), runtime(true)];
    for number in 0..48 {
        let (far, seen, ended) = (far.clone(), seen.clone(), ended.clone());
        // Some users stop waiting before a message arrives: threads with a short timeout, and tasks
        // that drop their future.
        match number % 4 {
            0 => drop(thread::spawn(move || {
                let _ended = ended;
                while let Err(Error::TimedOut) = far.recv_timeout(SHORT).map(|m| seen.note(&m)) {}
                while far.recv().map(|m| seen.note(&m)).is_ok() {}
            })),
            1 => drop(thread::spawn(move || {
                let _ended = ended;
                loop {
                    match far.next_completion() {
                        Ok(Completion::Received(message)) => seen.note(&message),
                        Ok(Completion::Disconnected(_)) | Err(Error::Disconnected(_)) => break,
                        other => panic!("{other:?}"),
                    }
                }
            })),
            2 => drop(runtimes[number / 4 % 2].spawn(async move {
                let _ended = ended;
                let far = TaskEndpoint::new(far).unwrap();
                loop {
                    match timeout(SHORT, far.recv()).await {
                        Err(_) => {}
                        Ok(Ok(message)) => seen.note(&message),
                        Ok(Err(_)) => break,
                    }
                }
            })),
            _ => drop(runtimes[0].spawn(async move {
                let _ended = ended;
                let far = TaskEndpoint::new(far).unwrap();
                while far.recv().await.map(|m| seen.note(&m)).is_ok() {}
            })),
        }
    }
    drop(ended);
    send_to_all(&near, COUNT, &all_ended);
    seen.assert_all(COUNT);
}

#[test]
fn serves_hundreds_of_users_at_once() {
    let users = match ip_and_transport().1 {
        Transport::Tcp => 500,
        // Over RDMA, each connect takes milliseconds.
        _ => 20,
    };
    let config = Config::default().with(|c| {
        c.receive_window = Some(2);
        c.send_depth = Some(2);
        c.connect_timeout = TIME_LIMIT;
    });
    let server = runtime(true);
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .backlog(1000)
        .bind((ip_and_transport().0, 0))
        .map(TaskListener::from)
        .unwrap();
    let addr = listener.local_addr();
    server.spawn(async move {
        while let Ok(endpoint) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(message) = endpoint.recv().await {
                    endpoint.send(&message).await.unwrap();
                }
            });
        }
    });
    runtime(true).block_on(async {
        let connector = Connector::new().config(&config);
        let tasks: Vec<_> = (0..users)
            .map(|number: u32| {
                let connector = connector.clone();
                tokio::spawn(async move {
                    let endpoint = TaskEndpoint::connect_with(&connector, addr).await.unwrap();
                    for round in 0..5 {
                        let bytes = (number * 10 + round).to_le_bytes();
                        endpoint.send(&bytes).await.unwrap();
                        assert_eq!(*endpoint.recv().await.unwrap(), bytes);
                    }
                    endpoint
                })
            })
            .collect();
        // Close the connections only after all tasks have received their replies, so that all
        // connections are open concurrently.
        let mut endpoints = Vec::new();
        for task in tasks {
            endpoints.push(timeout(TIME_LIMIT, task).await.unwrap().unwrap());
        }
        for endpoint in endpoints {
            endpoint.close().await.unwrap();
        }
    });
}
