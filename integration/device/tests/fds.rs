//! Tests the file descriptors that endpoints and listeners offer to event loops, on one host.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    os::fd::{AsRawFd, BorrowedFd},
    thread,
    time::Duration,
};

use mio::unix::SourceFd;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        resource::{Resource, getrlimit, setrlimit},
    },
};
use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Interest, Listener,
    Message, Outgoing, Polling, RequestListener, TrySendError, crossbeam_channel::Select,
};
use toolbox::{Deadline, DeviceTest, TIME_LIMIT, connect, open_fds, pair, pair_with, patient};

fn poll_for(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let timeout = PollTimeout::try_from(timeout).unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout).unwrap() == 1
}

/// Returns true if a descriptor is readable now.
fn readable(fd: BorrowedFd<'_>) -> bool {
    poll_for(fd, Duration::ZERO)
}

/// Waits until a descriptor is readable. If the engine's thread has not processed a control frame
/// yet, this frame makes the descriptor readable, too.
fn wait_readable(fd: BorrowedFd<'_>) {
    assert!(poll_for(fd, TIME_LIMIT), "the fd never became readable");
}

/// Receives `count` messages like an event loop: waits for the descriptor, then receives until no
/// message is pending.
fn take_all(endpoint: &Endpoint, count: usize) -> Vec<Message> {
    let fd = endpoint.event_fd(Interest::Readable).unwrap();
    let mut taken = Vec::new();
    while taken.len() < count {
        wait_readable(fd);
        taken.extend(std::iter::from_fn(|| endpoint.try_recv().unwrap()));
    }
    taken
}

/// Receives the next message like an event loop.
fn take(endpoint: &Endpoint) -> Message {
    take_all(endpoint, 1).pop().unwrap()
}

/// Waits until the descriptor is not readable. The caller ensures that no messages arrive, so only
/// a limited number of control frames can make the descriptor readable.
fn wait_until_unreadable(endpoint: &Endpoint, fd: BorrowedFd<'_>) {
    let mut deadline = Deadline::after(TIME_LIMIT);
    while readable(fd) {
        assert!(endpoint.try_recv().unwrap().is_none());
        assert!(!deadline.is_over(), "the fd must become unreadable");
    }
}

/// Waits until the endpoint's channel contains a completion, and leaves the completion there.
fn wait_unread(endpoint: &Endpoint) {
    let mut select = Select::new();
    select.recv(endpoint.completions());
    select.ready_timeout(TIME_LIMIT).unwrap();
}

/// Sends without blocking until the window is full. Returns the number of messages sent.
fn fill(endpoint: &Endpoint) -> usize {
    let mut sent = 0;
    loop {
        match endpoint.try_send(b"x") {
            Ok(()) => sent += 1,
            Err(TrySendError::Full) => return sent,
            Err(error) => panic!("{error}"),
        }
    }
}

fn epoll() -> Epoll {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap()
}

fn watch(epoll: &Epoll, fd: BorrowedFd<'_>, token: u64) {
    let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
    epoll.add(fd, event).unwrap();
}

const BOTH: [Interest; 2] = [Interest::Readable, Interest::Writable];

/// Registers the descriptors for both interests in edge-triggered mode.
fn watch_edges(epoll: &Epoll, endpoint: &Endpoint, token: u64) {
    for interest in BOTH {
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, token);
        epoll
            .add(endpoint.event_fd(interest).unwrap(), event)
            .unwrap();
    }
}

fn unwatch(epoll: &Epoll, endpoint: &Endpoint) {
    for interest in BOTH {
        epoll.delete(endpoint.event_fd(interest).unwrap()).unwrap();
    }
}

/// Waits until at least one descriptor is readable. Returns the tokens of all readable descriptors.
fn events(epoll: &Epoll) -> Vec<u64> {
    let mut events = [EpollEvent::empty(); 16];
    let timeout = PollTimeout::try_from(TIME_LIMIT).unwrap();
    let count = epoll.wait(&mut events, timeout).unwrap();
    assert!(count > 0, "no fd became readable");
    events[..count].iter().map(EpollEvent::data).collect()
}

#[test]
fn fd_is_readable_only_while_completions_are_pending() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let fd = server.event_fd(Interest::Readable).unwrap();
    assert!(!readable(fd), "the fd must be unreadable before a send");
    for round in 0..20_u8 {
        for part in 0..3 {
            client.send(&[round, part]).unwrap();
        }
        let messages = take_all(&server, 3);
        for (part, message) in (0..3).zip(&messages) {
            assert_eq!(**message, [round, part]);
        }
        wait_until_unreadable(&server, fd);
        drop(messages);
        wait_until_unreadable(&server, fd);
    }
    client.send(b"first").unwrap();
    client.send(b"second").unwrap();
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"first");
    wait_unread(&server);
    for _ in 0..3 {
        assert!(
            readable(fd),
            "the fd must stay readable while a message is pending"
        );
    }
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"second");
    wait_until_unreadable(&server, fd);
}

#[test]
fn the_end_is_readable_for_good() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let fd = server.event_fd(Interest::Readable).unwrap();
    client.send(b"last words").unwrap();
    client.close().unwrap();
    let mut messages = 0;
    let end = loop {
        wait_readable(fd);
        match server.try_recv() {
            Ok(message) => messages += usize::from(message.is_some()),
            Err(error) => break error,
        }
    };
    assert_eq!(messages, 1);
    assert!(matches!(end, Error::Disconnected(CloseReason::PeerClosed)));
    for _ in 0..3 {
        assert!(readable(fd));
        assert!(server.try_recv().is_err());
    }
    // On the client, the test calls `event_fd` for the first time after the connection has ended.
    assert!(readable(client.event_fd(Interest::Readable).unwrap()));
    assert!(readable(client.event_fd(Interest::Writable).unwrap()));
    assert!(matches!(
        client.try_recv(),
        Err(Error::Disconnected(CloseReason::LocallyClosed))
    ));
    assert!(readable(client.event_fd(Interest::Readable).unwrap()));
}

#[test]
fn earlier_completions_make_new_fd_readable() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    client.send(b"early").unwrap();
    wait_unread(&server);
    let fd = server.event_fd(Interest::Readable).unwrap();
    assert!(readable(fd));
    let epoll = epoll();
    watch(&epoll, fd, 7);
    assert_eq!(
        events(&epoll),
        [7],
        "epoll must report an fd that was readable before it was added"
    );
    assert_eq!(*server.try_recv().unwrap().unwrap(), *b"early");
    assert!(!readable(fd));
}

#[test]
fn fd_state_updates_at_next_try_after_channel_use() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let fd = server.event_fd(Interest::Readable).unwrap();
    client.send(b"around").unwrap();
    wait_readable(fd);
    server.completions().recv_timeout(TIME_LIMIT).unwrap();
    assert!(server.try_recv().unwrap().is_none());
    wait_until_unreadable(&server, fd);
}

#[test]
fn fd_reports_completions_of_operations() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let fd = client.event_fd(Interest::Readable).unwrap();
    client.send(Outgoing::from(b"question").with_id(7)).unwrap();
    wait_unread(&client);
    assert!(
        client.try_recv().unwrap().is_none(),
        "try_recv must not take the completion of a send"
    );
    assert!(
        readable(fd),
        "the fd must stay readable until the completion is taken"
    );
    assert!(matches!(
        client.try_next_completion(),
        Ok(Some(Completion::Sent(7)))
    ));
    wait_until_unreadable(&client, fd);
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"question");
    // A message above the eager size must make the descriptor readable, too.
    let large = vec![5; 1 << 20];
    let sender = thread::spawn({
        let (server, large) = (server.clone(), large.clone());
        move || server.send(&large).unwrap()
    });
    assert_eq!(*take(&client), *large);
    sender.join().unwrap();
    wait_until_unreadable(&client, fd);
}

#[test]
fn waiting_threads_and_event_loops_take_turns() {
    let _test = DeviceTest::start();
    for polling in [Polling::Event, Polling::default(), Polling::Busy] {
        let mut config = Config::default();
        config.polling = polling;
        let (client, server) = pair_with(&config);
        // Before the first call of `event_fd`, this thread polls, and the engine does not.
        for _ in 0..20 {
            client.send(b"a").unwrap();
            server.recv_timeout(TIME_LIMIT).unwrap();
        }
        let fd = server.event_fd(Interest::Readable).unwrap();
        for i in 0..200_u32 {
            client.send(&i.to_le_bytes()).unwrap();
            let message = if i % 3 == 0 {
                server.recv_timeout(TIME_LIMIT).unwrap()
            } else {
                take(&server)
            };
            assert_eq!(*message, i.to_le_bytes());
            wait_until_unreadable(&server, fd);
        }
        // Call the client's `event_fd` for the first time while a thread sleeps in `recv`.
        let sleeper = thread::spawn({
            let client = client.clone();
            move || client.recv_timeout(TIME_LIMIT).unwrap().into_vec()
        });
        client.event_fd(Interest::Readable).unwrap();
        server.send(b"for the sleeper").unwrap();
        assert_eq!(sleeper.join().unwrap(), b"for the sleeper");
        server.send(b"for the loop").unwrap();
        assert_eq!(*take(&client), *b"for the loop");
    }
}

#[test]
fn fd_reports_room_after_refused_send() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.receive_window = Some(8);
    let (client, server) = pair_with(&config);
    // Fill the window before the first call of `event_fd`. When a send is refused, the descriptor
    // that reports space in the window does not exist yet.
    let mut sent = fill(&client);
    let fd = client.event_fd(Interest::Writable).unwrap();
    let other = client.event_fd(Interest::Readable).unwrap();
    for _ in 0..20 {
        // Further grants can still arrive, so fill the window until the descriptor stays
        // unreadable.
        while poll_for(fd, Duration::from_millis(50)) {
            sent += fill(&client);
        }
        for _ in 0..sent {
            server.recv_timeout(TIME_LIMIT).unwrap();
        }
        wait_readable(fd);
        // Space in the send window does not make the descriptor for received messages readable.
        wait_until_unreadable(&client, other);
        client.try_send(b"y").unwrap();
        assert!(
            readable(fd),
            "the fd must stay readable until a try_send is refused"
        );
        sent = 1 + fill(&client);
    }
    // All grants that were in flight have arrived when this message arrives.
    server.send(b"behind all room").unwrap();
    assert_eq!(*take(&client), *b"behind all room");
    fill(&client);
    server.send(b"a message is no room").unwrap();
    assert_eq!(*take(&client), *b"a message is no room");
    assert!(!readable(fd));
    server.abort(3);
    wait_readable(other);
    wait_readable(fd);
    assert!(matches!(
        client.recv_timeout(TIME_LIMIT),
        Err(Error::Disconnected(CloseReason::PeerAborted(3)))
    ));
    assert!(matches!(
        client.try_send(b"z"),
        Err(TrySendError::Failed(_))
    ));
    assert!(
        readable(fd),
        "the fd must stay readable after the connection has ended"
    );
}

/// Echoes all messages of an endpoint without blocking. Messages that do not fit into the window
/// are queued.
struct Echo {
    endpoint: Endpoint,
    unanswered: VecDeque<Message>,
}

impl Echo {
    /// Receives and sends until neither is possible. Returns false if the connection has ended.
    fn process(&mut self) -> bool {
        let goes_on = loop {
            match self.endpoint.try_recv() {
                Ok(Some(message)) => self.unanswered.push_back(message),
                Ok(None) => break true,
                Err(Error::Disconnected(CloseReason::PeerClosed)) => break false,
                Err(error) => panic!("{error}"),
            }
        };
        while let Some(message) = self.unanswered.front() {
            match self.endpoint.try_send(message) {
                Ok(()) => drop(self.unanswered.pop_front()),
                Err(TrySendError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        goes_on
    }
}

const CONNECTIONS: usize = 24;
const MESSAGES: u32 = 150;

/// Accepts [`CONNECTIONS`] connections and echoes their messages in one loop, until all connections
/// are closed.
fn echo_loop(listener: &Listener) {
    const LISTENER: u64 = 0;
    let epoll = epoll();
    watch(&epoll, listener.event_fd().unwrap(), LISTENER);
    let mut echoes = HashMap::new();
    let (mut accepted, mut ended) = (0, 0);
    while ended < CONNECTIONS {
        for token in events(&epoll) {
            if token == LISTENER {
                while let Some(endpoint) = listener.try_accept().unwrap() {
                    accepted += 1;
                    watch_edges(&epoll, &endpoint, accepted);
                    let unanswered = VecDeque::new();
                    let echo = Echo {
                        endpoint,
                        unanswered,
                    };
                    echoes.insert(accepted, echo);
                }
            } else if !echoes.get_mut(&token).is_none_or(Echo::process) {
                let echo = echoes.remove(&token).unwrap();
                assert!(echo.unanswered.is_empty());
                unwatch(&epoll, &echo.endpoint);
                ended += 1;
            }
        }
    }
}

#[test]
fn endpoints_and_listener_share_one_epoll_loop() {
    let lab = DeviceTest::start();
    let mut config = patient();
    config.receive_window = Some(8);
    let listener = Listener::builder().config(&config).bind(lab.at(0)).unwrap();
    let address = listener.local_addr();
    let server = thread::spawn(move || echo_loop(&listener));
    let connector = Connector::new().config(&config);
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|_| connector.connect(address).unwrap())
        .collect();

    let epoll = epoll();
    for (client, token) in clients.iter().zip(0..) {
        watch_edges(&epoll, client, token);
    }
    let mut progress = [(0_u32, 0_u32); CONNECTIONS];
    let send = |at: usize, sent: &mut u32| {
        while *sent < MESSAGES {
            match clients[at].try_send(&[&sent.to_le_bytes()[..], &[at as u8; 100]].concat()) {
                Ok(()) => *sent += 1,
                Err(TrySendError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
    };
    for (at, (sent, _)) in progress.iter_mut().enumerate() {
        send(at, sent);
    }
    while progress.iter().any(|(_, received)| *received < MESSAGES) {
        for token in events(&epoll) {
            let at = token as usize;
            let (sent, received) = &mut progress[at];
            while let Some(message) = clients[at].try_recv().unwrap() {
                assert_eq!(message[..4], received.to_le_bytes(), "connection {at}");
                assert_eq!(message[4..], [at as u8; 100]);
                *received += 1;
            }
            send(at, sent);
        }
    }
    for client in clients {
        client.close().unwrap();
    }
    server.join().unwrap();
}

#[test]
fn listener_fd_reports_requests() {
    let lab = DeviceTest::start();
    let listener = RequestListener::bind(lab.at(0)).unwrap();
    let address = listener.local_addr();
    let fd = listener.event_fd().unwrap();
    assert!(!readable(fd));
    let client = thread::spawn(move || connect(address).unwrap_err());
    wait_readable(fd);
    let request = listener.try_request().unwrap();
    assert!(!readable(fd));
    assert!(listener.try_request().is_none());
    request.reject(b"no").unwrap();
    assert!(matches!(
        client.join().unwrap(),
        Error::Connect {
            reason: CloseReason::Rejected { .. },
            ..
        }
    ));
    listener.close();
    wait_readable(fd);
}

#[test]
fn listener_fd_reports_connections_and_end() {
    let lab = DeviceTest::start();
    let engine = Engine::new().unwrap();
    let listener = Listener::builder().config(&patient()).engine(&engine);
    let listener = listener.bind(lab.at(0)).unwrap();
    let address = listener.local_addr();
    let fd = listener.event_fd().unwrap();
    assert!(!readable(fd));
    assert!(listener.try_accept().unwrap().is_none());

    let client = thread::spawn(move || connect(address).unwrap());
    wait_readable(fd);
    let server = listener.try_accept().unwrap().unwrap();
    assert!(
        !readable(fd),
        "the fd must be unreadable if no connection is pending"
    );
    client.join().unwrap().send(b"hello").unwrap();
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"hello");

    drop(server);
    engine.shutdown();
    for _ in 0..3 {
        assert!(
            readable(fd),
            "the fd must stay readable after the engine has shut down"
        );
        assert!(matches!(listener.try_accept(), Err(Error::EngineShutDown)));
    }
}

#[test]
fn late_fd_reports_earlier_completions() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    client.send(b"before").unwrap();
    wait_unread(&server);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Limit the number of descriptors, so that the process can open only one more.
    let next = File::open("/dev/null").unwrap().as_raw_fd();
    setrlimit(Resource::RLIMIT_NOFILE, next as u64 + 1, hard).unwrap();
    let refused = server.event_fd(Interest::Readable).map(drop);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let refused = refused.unwrap_err().to_string();
    let expected = "epoll_create1: Too many open files (os error 24)";
    assert!(refused.starts_with(expected), "{refused}");
    let fd = server.event_fd(Interest::Readable).unwrap();
    assert!(readable(fd));
    assert_eq!(*server.try_recv().unwrap().unwrap(), *b"before");
    client.send(b"behind").unwrap();
    assert_eq!(*take(&server), *b"behind");
}

#[test]
fn an_fd_works_with_mio() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let mut poll = mio::Poll::new().unwrap();
    let fd = server.event_fd(Interest::Readable).unwrap().as_raw_fd();
    poll.registry()
        .register(&mut SourceFd(&fd), mio::Token(3), mio::Interest::READABLE)
        .unwrap();
    let sender = thread::spawn(move || {
        (0..500_u32).for_each(|i| client.send(&i.to_le_bytes()).unwrap());
        client.close().unwrap();
    });
    let mut events = mio::Events::with_capacity(4);
    let mut received = 0_u32;
    'connection: loop {
        poll.poll(&mut events, Some(TIME_LIMIT)).unwrap();
        let event = events.iter().next().expect("an event must arrive in time");
        assert!(event.token() == mio::Token(3) && event.is_readable());
        // mio is edge-triggered, so receive until no message is pending.
        loop {
            match server.try_recv() {
                Ok(Some(message)) => {
                    assert_eq!(*message, received.to_le_bytes());
                    received += 1;
                }
                Ok(None) => break,
                Err(Error::Disconnected(CloseReason::PeerClosed)) => break 'connection,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(received, 500);
    sender.join().unwrap();
}

#[test]
fn failed_fd_creation_is_reported_and_retryable() {
    let lab = DeviceTest::start();
    let mut config = Config::default();
    config.polling = Polling::Event;
    let (client, server) = pair_with(&config);
    let listener = Listener::bind(lab.at(0)).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // The limit is below the number of open descriptors, so the process cannot open another one.
    // The open descriptors remain usable.
    setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap();
    let errors = [
        server.event_fd(Interest::Readable).map(drop),
        listener.event_fd().map(drop),
    ];
    // The receiving thread sleeps on a descriptor that already exists, so it opens no descriptor.
    let sleeper =
        thread::spawn(move || (server.recv_timeout(TIME_LIMIT).unwrap().into_vec(), server));
    let sent = client.send(b"while there is no fd");
    let (message, server) = sleeper.join().unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();

    for error in errors {
        let error = error.unwrap_err();
        assert!(
            matches!(&error, Error::Os(os) if os.errno == nix::libc::EMFILE),
            "{error:?}"
        );
        let error = error.to_string();
        let expected = "eventfd: Too many open files (os error 24)";
        assert!(error.starts_with(expected), "{error}");
    }
    sent.unwrap();
    assert_eq!(message, b"while there is no fd");
    let before = open_fds();
    assert!(!readable(server.event_fd(Interest::Readable).unwrap()));
    server.event_fd(Interest::Readable).unwrap();
    assert_eq!(
        open_fds(),
        before + 2,
        "all calls of event_fd must share one eventfd and one epoll instance"
    );
    client.send(b"again").unwrap();
    assert_eq!(*take(&server), *b"again");
}
