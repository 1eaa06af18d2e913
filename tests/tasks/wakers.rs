//! Tests of wakers that panic, block, or poll their task immediately. A waker must affect only its
//! own connection.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, TryLockError,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
};

use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Engine, Error, Listener, RequestListener, Transport,
    TransportChoice,
};
use smol::block_on;

use super::stage::{TIME_LIMIT, connector, ip_and_transport, pair_with, with_time_to_connect};

/// The code of the Failure frame that a side sends after a waker has panicked.
const WAKER_PANICKED: u32 = 2;

/// A waker that reports its call through a channel and then panics.
struct Panics(Sender<()>);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
        panic!("panic of the test's waker");
    }
}

/// Returns a waker that panics, and the receiver of its report.
fn panicking() -> (Waker, Receiver<()>) {
    let (calls, called) = channel();
    (Waker::from(Arc::new(Panics(calls))), called)
}

/// A waker that reports its call through the channel `called`. It then blocks until the sending
/// half of the channel `leave` is dropped.
struct Blocks {
    called: Sender<()>,
    leave: Mutex<Receiver<()>>,
}

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        let _ = self.called.send(());
        let _ = self.leave.lock().unwrap().recv();
    }
}

/// Returns a waker that blocks, the receiver of its report, and a sender. Dropping the sender
/// unblocks the waker.
fn blocking() -> (Waker, Receiver<()>, Sender<()>) {
    let (called, calls) = channel();
    let (left, leave) = channel();
    let blocks = Blocks {
        called,
        leave: Mutex::new(leave),
    };
    (Waker::from(Arc::new(blocks)), calls, left)
}

fn recv(endpoint: &Endpoint) -> impl Future<Output = Result<rdmsg::Message, Error>> {
    poll_fn(|cx| endpoint.poll_recv(cx))
}

/// Polls for a message with `waker`. The library calls `waker` when the next message arrives.
fn wait_with(endpoint: &Endpoint, waker: &Waker) {
    let polled = endpoint.poll_recv(&mut Context::from_waker(waker));
    assert!(polled.is_pending());
}

/// Exchanges messages between both endpoints in one task. The engine wakes the task.
fn exchange((one, other): &(Endpoint, Endpoint), rounds: u32) {
    block_on(async {
        for number in 0..rounds {
            let message = number.to_le_bytes();
            for (from, to) in [(one, other), (other, one)] {
                let arrives = recv(to);
                from.send(&message).unwrap();
                assert_eq!(*arrives.await.unwrap(), message);
            }
        }
    });
}

fn reason(endpoint: &Endpoint) -> CloseReason {
    match endpoint.recv_timeout(TIME_LIMIT) {
        Err(Error::Disconnected(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn waker_that_panics_ends_its_connection_only() {
    let pairs: Vec<_> = (0..10).map(|_| pair_with(&Config::default())).collect();
    wait_with(&pairs[3].0, &panicking().0);
    pairs[3].1.send(b"a message that wakes").unwrap();
    let peers = reason(&pairs[3].1);
    assert_eq!(peers, CloseReason::PeerFailed(WAKER_PANICKED));
    // The endpoint still delivers the message that has arrived, and then reports the end of the
    // connection.
    assert!(pairs[3].0.recv_timeout(TIME_LIMIT).is_ok());
    assert_eq!(reason(&pairs[3].0), CloseReason::WakerPanicked);
    let closed = pairs[3].0.close();
    assert!(
        matches!(closed, Err(Error::Undelivered(CloseReason::WakerPanicked))),
        "{closed:?}"
    );
    for (number, pair) in pairs.iter().enumerate() {
        if number != 3 {
            exchange(pair, 10);
        }
    }
    exchange(&pair_with(&Config::default()), 10);
}

#[test]
fn waker_of_a_connect_that_panics_ends_it() {
    let engine = Engine::shared().unwrap();
    let other = pair_with(&Config::default());
    // The listener accepts no request by itself, so the connect stays pending.
    let listener = RequestListener::bind((ip_and_transport().0, 0)).unwrap();
    let mut config = with_time_to_connect(&Config::default());
    // Select one transport. With two transports, the attempt over the second transport would start
    // only at a later poll, but this test polls the future only once.
    config.transport = match ip_and_transport().1 {
        Transport::Rdma => TransportChoice::Rdma,
        _ => TransportChoice::Tcp,
    };
    let connector = Connector::new().config(&config);
    let mut connecting = pin!(connector.start(listener.local_addr()).unwrap());
    let waker = panicking().0;
    let polled = connecting.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    let accepted = request.accept().unwrap();
    let end = reason(&accepted);
    assert_eq!(end, CloseReason::PeerFailed(WAKER_PANICKED));
    exchange(&other, 10);
    assert!(engine.statistics().is_ok(), "the engine must continue");
}

#[test]
fn waker_of_an_accept_that_panics_leaves_listener() {
    let listener = Listener::bind((ip_and_transport().0, 0)).unwrap();
    let (waker, called) = panicking();
    let polled = listener.poll_accept(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    for round in 0..2 {
        let address = listener.local_addr();
        let client = thread::spawn(move || connector().connect(address).unwrap());
        if round == 0 {
            called.recv_timeout(TIME_LIMIT).unwrap();
        }
        let accepted = block_on(poll_fn(|cx| listener.poll_accept(cx))).unwrap();
        exchange(&(client.join().unwrap(), accepted), 10);
    }
}

#[test]
fn waker_that_blocks_delays_its_connection_only() {
    let (client, server) = pair_with(&Config::default());
    let other = pair_with(&Config::default());
    let (waker, called, leave) = blocking();
    wait_with(&client, &waker);
    server.send(b"a message that wakes").unwrap();
    called.recv_timeout(TIME_LIMIT).unwrap();

    let (done, finished) = channel();
    let rest = thread::spawn(move || {
        exchange(&other, 1000);
        exchange(&pair_with(&Config::default()), 10);
        done.send(()).unwrap();
    });
    finished
        .recv_timeout(TIME_LIMIT)
        .expect("the waker must not block the engine");
    rest.join().unwrap();
    drop(leave);
    exchange(&(client, server), 0);
}

/// The first waker of each connection blocks one thread until the end of the test. Until then, the
/// library does not call the connection's second waker.
#[test]
fn second_waker_waits_until_the_first_returns() {
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .engine(&engine)
        .bind((ip_and_transport().0, 0))
        .unwrap();
    let connect = || common::connect_and_accept(&connector().engine(&engine), &listener);
    let (stuck, other) = ([connect(), connect(), connect()], connect());
    let wakers: Vec<_> = stuck
        .iter()
        .map(|(client, server)| {
            let (waker, called, leave) = blocking();
            wait_with(client, &waker);
            server.send(b"a message that wakes").unwrap();
            called.recv_timeout(TIME_LIMIT).unwrap();
            let (second, call, gone) = blocking();
            assert!(
                client
                    .poll_recv(&mut Context::from_waker(&second))
                    .is_ready()
            );
            wait_with(client, &second);
            server.send(b"a message that wakes nobody").unwrap();
            (leave, call, gone)
        })
        .collect();
    exchange(&other, 1000);
    for (_, call, _) in &wakers {
        assert!(
            call.try_recv().is_err(),
            "a second waker must not be called"
        );
    }
    drop((stuck, other, listener));
    engine.shutdown();
}

/// A task whose waker polls the task, on the thread that calls the waker.
struct Inline {
    task: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// Whether the task was woken after the most recent poll began.
    again: AtomicBool,
    polls: AtomicU32,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.again.store(true, Ordering::SeqCst);
        while self.again.load(Ordering::SeqCst) {
            let mut slot = match self.task.try_lock() {
                Ok(slot) => slot,
                // A poll is running. The thread that runs it will poll the task once more.
                Err(TryLockError::WouldBlock) => return,
                Err(TryLockError::Poisoned(_)) => panic!("the task failed"),
            };
            self.again.store(false, Ordering::SeqCst);
            self.polls.fetch_add(1, Ordering::SeqCst);
            let waker = Waker::from(Arc::clone(&self));
            let Some(task) = &mut *slot else { return };
            let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(()) = polled {
                *slot = None;
            }
        }
    }
}

#[test]
fn executor_that_polls_inside_wake_echoes() {
    const ROUNDS: u32 = 200;
    let (client, server) = pair_with(&Config::default());
    let task = async move {
        for _ in 0..ROUNDS {
            let message = recv(&server).await.unwrap();
            poll_fn(|cx| server.poll_send(cx, &message)).await.unwrap();
        }
        server.flush().unwrap();
    };
    let inline = Arc::new(Inline {
        task: Mutex::new(Some(Box::pin(task))),
        again: AtomicBool::new(false),
        polls: AtomicU32::new(0),
    });
    Arc::clone(&inline).wake();
    for number in 0..ROUNDS {
        client.send(&number.to_le_bytes()).unwrap();
        let answer = client.recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(*answer, number.to_le_bytes());
    }
    assert!(
        inline.polls.load(Ordering::SeqCst) > 1,
        "the wakers must poll the task"
    );
}
