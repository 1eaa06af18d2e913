//! Tests connections on which both sides send without pauses while they receive. Each side is one
//! thread that runs an event loop over the connection's descriptors. The tests use a
//! level-triggered loop, an edge-triggered loop, and tokio. Further tests check whether the loop or
//! the engine polls the connection.

use std::{
    fs, io,
    os::fd::{BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use nix::{
    poll::PollTimeout,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
};
use rdmsg::{Completion, Config, Endpoint, Error, Group, Interest, Message, Polling, TrySendError};
use tokio::{
    io::unix::AsyncFd,
    runtime::{Builder, Runtime},
    time::timeout,
};
use toolbox::{Deadline, DeviceTest, TIME_LIMIT, pair_with, pattern};

/// The number of messages that each side sends.
const MESSAGES: u64 = 2000;

/// Returns a configuration with a small window, which is usually full.
fn small_window() -> Config {
    let mut config = Config::default();
    config.receive_window = Some(4);
    config.send_depth = Some(4);
    config
}

fn message(number: u64) -> Vec<u8> {
    let len = if number % 400 == 399 { 60_000 } else { 40 };
    pattern(number, len)
}

fn epoll() -> Epoll {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap()
}

fn fd(endpoint: &Endpoint, interest: Interest) -> BorrowedFd<'_> {
    endpoint.event_fd(interest).unwrap()
}

/// Waits for events for up to `time`. Returns the number of events.
fn wait(epoll: &Epoll, time: Duration) -> usize {
    let mut events = [EpollEvent::empty(); 4];
    let time = PollTimeout::try_from(time).unwrap();
    epoll.wait(&mut events, time).unwrap()
}

/// One side of the exchange, with the numbers of messages that it has sent and received.
struct Side<'a> {
    endpoint: &'a Endpoint,
    sent: u64,
    received: u64,
}

impl<'a> Side<'a> {
    fn new(endpoint: &'a Endpoint) -> Self {
        Self {
            endpoint,
            sent: 0,
            received: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.sent == MESSAGES && self.received == MESSAGES
    }

    fn take(&mut self, taken: &Message) {
        assert!(**taken == message(self.received), "{}", self.received);
        self.received += 1;
    }

    fn receive_all(&mut self) {
        while let Some(taken) = self.endpoint.try_recv().unwrap() {
            self.take(&taken);
        }
    }

    /// Sends until all messages are sent or the window is full. Returns true if the window is full.
    fn send_all(&mut self) -> bool {
        while self.sent < MESSAGES {
            match self.endpoint.try_send(&message(self.sent)) {
                Ok(()) => self.sent += 1,
                Err(TrySendError::Full) => return true,
                Err(error) => panic!("{error}"),
            }
        }
        false
    }
}

fn edge_triggered(endpoint: &Endpoint) {
    let epoll = epoll();
    for interest in [Interest::Readable, Interest::Writable] {
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        epoll.add(fd(endpoint, interest), event).unwrap();
    }
    let mut side = Side::new(endpoint);
    loop {
        side.receive_all();
        side.send_all();
        if side.is_done() {
            break;
        }
        assert!(
            wait(&epoll, TIME_LIMIT) > 0,
            "no edge arrives after {} sent and {} received messages",
            side.sent,
            side.received
        );
    }
}

fn level_triggered(endpoint: &Endpoint) {
    let epoll = epoll();
    let watch = |flags| EpollEvent::new(flags, 0);
    epoll
        .add(fd(endpoint, Interest::Readable), watch(EpollFlags::EPOLLIN))
        .unwrap();
    let room = fd(endpoint, Interest::Writable);
    epoll.add(room, watch(EpollFlags::empty())).unwrap();
    let mut side = Side::new(endpoint);
    loop {
        // Take only one message per event, to test that the descriptor reports the remaining
        // messages again.
        if let Some(taken) = endpoint.try_recv().unwrap() {
            side.take(&taken);
        }
        let full = side.send_all();
        if side.is_done() {
            break;
        }
        let flags = if full {
            EpollFlags::EPOLLIN
        } else {
            EpollFlags::empty()
        };
        epoll.modify(room, &mut watch(flags)).unwrap();
        assert!(
            wait(&epoll, TIME_LIMIT) > 0,
            "no event arrives after {} sent and {} received messages",
            side.sent,
            side.received
        );
    }
}

/// Runs the same loop on both sides of a connection, each in its own thread.
fn exchange(run: impl Fn(&Endpoint) + Sync) {
    let (client, server) = pair_with(&small_window());
    thread::scope(|scope| {
        scope.spawn(|| run(&client));
        run(&server);
    });
    client.close().unwrap();
}

#[test]
fn edge_triggered_full_duplex_loop_never_hangs() {
    let _test = DeviceTest::start();
    exchange(edge_triggered);
}

#[test]
fn level_triggered_full_duplex_loop_never_hangs() {
    let _test = DeviceTest::start();
    exchange(level_triggered);
}

#[test]
fn writer_sleeps_until_room_despite_unread_messages() {
    let _test = DeviceTest::start();
    let (client, server) = pair_with(&small_window());
    // The server has unread questions, and its answers fill the window.
    for _ in 0..3 {
        client.send(b"question").unwrap();
    }
    let epoll = epoll();
    let level = EpollEvent::new(EpollFlags::EPOLLIN, 0);
    let (readable, room) = (
        fd(&server, Interest::Readable),
        fd(&server, Interest::Writable),
    );
    epoll.add(readable, level).unwrap();
    assert!(wait(&epoll, TIME_LIMIT) > 0, "a question must be reported");
    epoll.delete(readable).unwrap();
    epoll.add(room, level).unwrap();
    let mut sent = 0;
    for _ in 0..20 {
        // The descriptor can become readable again when a pending send completes. Whenever the
        // descriptor is readable, `try_send` must be able to send an answer.
        loop {
            let before = sent;
            while server.try_send(b"answer").is_ok() {
                sent += 1;
            }
            if wait(&epoll, Duration::from_millis(100)) == 0 {
                break;
            }
            assert!(
                sent > before || wait(&epoll, Duration::ZERO) == 1,
                "the fd is readable, but the window is full"
            );
        }
        assert!(
            wait(&epoll, Duration::ZERO) == 0,
            "received messages must not make the fd for sends readable"
        );
        for _ in 0..sent {
            client.recv_timeout(TIME_LIMIT).unwrap();
        }
        assert!(
            wait(&epoll, TIME_LIMIT) > 0,
            "the fd must report that the window is no longer full"
        );
        sent = 0;
    }

    // Now test the opposite case: the window has space, but no message is pending.
    epoll.delete(room).unwrap();
    while server.try_recv().unwrap().is_some() {}
    epoll.add(readable, level).unwrap();
    assert_eq!(
        wait(&epoll, Duration::ZERO),
        0,
        "space in the window must not make the fd for messages readable"
    );
    client.send(b"another").unwrap();
    assert!(wait(&epoll, TIME_LIMIT) > 0);
}

#[test]
fn receive_without_fd_keeps_the_next_edge() {
    let _test = DeviceTest::start();
    let (client, server) = pair_with(&small_window());
    let epoll = epoll();
    let edges = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
    epoll.add(fd(&server, Interest::Readable), edges).unwrap();
    for _ in 0..20 {
        client.send(b"around").unwrap();
        assert!(wait(&epoll, TIME_LIMIT) > 0, "no edge");
        // Take the message through the channel, without using the descriptor.
        server.completions().recv_timeout(TIME_LIMIT).unwrap();
    }
    // If the channel contains unread messages, each new message still triggers an edge.
    for _ in 0..3 {
        client.send(b"left").unwrap();
        assert!(wait(&epoll, TIME_LIMIT) > 0, "no edge");
    }
}

/// Returns the number of times that the threads of all engines have gone to sleep.
fn sleeps_of_engines() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let engines = tasks.map(|task| task.unwrap().path()).filter(|task| {
        let name = fs::read_to_string(task.join("comm"));
        name.is_ok_and(|name| name.trim() == "rdmsg-engine")
    });
    let sleeps = engines.map(|engine| {
        let status = fs::read_to_string(engine.join("status")).unwrap();
        let line = |line: &str| {
            line.strip_prefix("voluntary_ctxt_switches:")?
                .trim()
                .parse()
                .ok()
        };
        status.lines().find_map(line).unwrap_or(0_u64)
    });
    sleeps.sum()
}

/// Sends `questions` messages, and waits for the answer to each message. A second thread answers
/// the messages in an event loop over the descriptor for [`Interest::Readable`].
fn ask(client: &Endpoint, server: &Endpoint, questions: u64) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let epoll = epoll();
            let level = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            epoll.add(fd(server, Interest::Readable), level).unwrap();
            let mut answered = 0;
            while answered < questions {
                assert!(wait(&epoll, TIME_LIMIT) > 0, "{answered} answered");
                while let Some(question) = server.try_recv().unwrap() {
                    server.send(&question).unwrap();
                    answered += 1;
                }
            }
        });
        for number in 0..questions {
            client.send(&message(number)).unwrap();
            let answer = client.recv_timeout(TIME_LIMIT).unwrap();
            assert!(answer == message(number));
        }
    });
}

#[test]
fn frequent_event_loop_polls_by_itself() {
    const QUESTIONS: u64 = 100;
    let _test = DeviceTest::start();
    let config = Config::default().with(|c| c.polling = Polling::Event);
    let (client, server) = pair_with(&config);
    // Repeat the measurement until it succeeds, because on a busy machine the loop sometimes polls
    // so rarely that the engine polls, too.
    let mut deadline = Deadline::after(TIME_LIMIT);
    loop {
        let before = sleeps_of_engines();
        ask(&client, &server, QUESTIONS);
        let sleeps = sleeps_of_engines() - before;
        if sleeps < QUESTIONS / 4 {
            break;
        }
        assert!(!deadline.is_over(), "the engine sleeps {sleeps} times");
    }
    client.close().unwrap();
}

#[test]
fn stopped_loop_still_answers_pings() {
    let _test = DeviceTest::start();
    let mut config = Config::default().with(|c| c.polling = Polling::Event);
    config.keepalive_interval = Some(Duration::from_millis(200));
    let (client, server) = pair_with(&config);
    ask(&client, &server, 50);
    let asked = client.statistics().pings_sent;
    let mut deadline = Deadline::after(TIME_LIMIT);
    // The client sends a ping only after the peer has answered the previous one. A growing number
    // of pings therefore shows that the peer answers.
    while client.statistics().pings_sent < asked + 4 {
        assert!(!deadline.is_over(), "{:?}", client.statistics());
        thread::sleep(Duration::from_millis(10));
    }
    ask(&client, &server, 50);
    client.close().unwrap();
}

#[test]
fn group_receives_after_event_loop_has_ended() {
    let _test = DeviceTest::start();
    let (client, server) = pair_with(&Config::default());
    ask(&client, &server, 50);
    let group = Group::new();
    group.add(&server).unwrap();
    client.send(b"for the group").unwrap();
    let (_, completion) = group.completions().recv_timeout(TIME_LIMIT).unwrap();
    assert!(matches!(completion, Completion::Received(message) if message == b"for the group"));
    client.close().unwrap();
}

/// An endpoint whose descriptors are registered with tokio, as shown in the documentation of
/// `event_fd`.
struct Async {
    endpoint: Endpoint,
    readable: AsyncFd<OwnedFd>,
    writable: AsyncFd<OwnedFd>,
}

impl Async {
    fn new(endpoint: Endpoint) -> Self {
        let register = |interest| {
            let fd = fd(&endpoint, interest).try_clone_to_owned().unwrap();
            // SAFETY: `fd` is an `OwnedFd`, so its descriptor refers to the same open file until
            // `fd` is dropped.
            unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) }.unwrap()
        };
        let (readable, writable) = (register(Interest::Readable), register(Interest::Writable));
        Self {
            endpoint,
            readable,
            writable,
        }
    }

    async fn recv(&self) -> Result<Message, Error> {
        loop {
            let mut guard = self.readable.readable().await.unwrap();
            let taken = guard.try_io(|_| match self.endpoint.try_recv() {
                Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
                Ok(Some(message)) => Ok(Ok(message)),
                Err(error) => Ok(Err(error)),
            });
            if let Ok(taken) = taken {
                return taken.unwrap();
            }
        }
    }

    async fn send(&self, message: &[u8]) -> Result<(), Error> {
        loop {
            let mut guard = self.writable.readable().await.unwrap();
            let sent = guard.try_io(|_| match self.endpoint.try_send(message) {
                Err(TrySendError::Full) => Err(io::ErrorKind::WouldBlock.into()),
                Err(TrySendError::Failed(error)) => Ok(Err(error)),
                Ok(()) => Ok(Ok(())),
            });
            if let Ok(sent) = sent {
                return sent.unwrap();
            }
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn full_duplex_with_tokio_never_hangs() {
    let _test = DeviceTest::start();
    exchange(|endpoint| {
        runtime().block_on(async {
            let here = Async::new(endpoint.clone());
            let sending = async {
                for number in 0..MESSAGES {
                    let sent = timeout(TIME_LIMIT, here.send(&message(number))).await;
                    sent.unwrap_or_else(|_| panic!("message {number} was not sent"))
                        .unwrap();
                }
            };
            let receiving = async {
                for number in 0..MESSAGES {
                    let taken = timeout(TIME_LIMIT, here.recv()).await;
                    let taken = taken.unwrap_or_else(|_| panic!("message {number} did not arrive"));
                    assert!(*taken.unwrap() == message(number), "{number}");
                }
            };
            tokio::join!(sending, receiving);
        });
    });
}
