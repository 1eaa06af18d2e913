//! Tests connections that share receive buffers.

use std::{
    fs,
    net::SocketAddr,
    sync::mpsc::{Receiver, channel},
    thread,
};

use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Engine, Error, Listener, RemoteAccess,
    RequestListener, TrySendError,
};
use toolbox::{DeviceTest, Lab, TIME_LIMIT, applies, patient, pattern, reason};

/// The number of receive buffers that are reserved for each connection.
const SHARE: u32 = 17;

/// Returns a configuration with `count` shared buffers. For a full window, a connection needs more
/// buffers than the [`SHARE`] that is reserved for it.
fn sharing(count: u32) -> Config {
    let mut config = patient();
    config.shared_receive = Some(count);
    config.receive_window = Some(16);
    config.send_depth = Some(16);
    config.eager_size = Some(2048);
    config
}

/// A listener with shared buffers. Its clients use another engine and their own buffers.
struct Server {
    listener: RequestListener,
    address: SocketAddr,
    clients: Engine,
}

impl Server {
    fn new(config: &Config) -> Self {
        let listener = Listener::builder()
            .config(config)
            .engine(&Engine::new().unwrap())
            .bind_requests(Lab::get().at(0))
            .unwrap();
        Self {
            address: listener.local_addr(),
            listener,
            clients: Engine::new().unwrap(),
        }
    }

    fn connect(&self) -> Receiver<Result<Endpoint, Error>> {
        let (result, connected) = channel();
        let mut config = sharing(2 * SHARE);
        config.shared_receive = None;
        let connector = Connector::new().config(&config).engine(&self.clients);
        let address = self.address;
        thread::spawn(move || result.send(connector.connect(address)));
        connected
    }

    /// Establishes a connection. Returns the client's end and the server's end.
    fn pair(&self) -> (Endpoint, Endpoint) {
        let client = self.connect();
        let request = self.listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        let server = request.accept().unwrap();
        (client.recv_timeout(TIME_LIMIT).unwrap().unwrap(), server)
    }

    fn pairs(&self, count: u32) -> Vec<(Endpoint, Endpoint)> {
        (0..count).map(|_| self.pair()).collect()
    }

    /// Connects while too few buffers are free for a connection. Returns the server's error and the
    /// client's error.
    fn refused(&self) -> (Error, Error) {
        let client = self.connect();
        let request = self.listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        let here = request.accept().unwrap_err();
        (here, client.recv_timeout(TIME_LIMIT).unwrap().unwrap_err())
    }

    /// Asserts that all buffers are in the pool again: `count` buffers suffice for `count / SHARE`
    /// connections, and the next connection is rejected.
    fn assert_complete(&self, count: u32) {
        let pairs = self.pairs(count / SHARE);
        let (here, _) = self.refused();
        assert!(
            matches!(here, Error::SharedReceivesExhausted { free, .. } if free == count % SHARE),
            "{here}"
        );
        for (client, server) in pairs {
            close(client, server);
        }
    }
}

/// Closes both ends, and waits until the server's end has returned its buffers to the pool.
fn close(client: Endpoint, server: Endpoint) {
    let closing = thread::spawn(move || client.close());
    server.close().unwrap();
    closing.join().unwrap().unwrap();
}

/// Sends a message from the end `from` to the end `to` and back. Checks that the message is
/// unchanged after each transfer.
fn ping(from: &Endpoint, to: &Endpoint, number: u64, len: usize) {
    let bytes = pattern(number, len);
    from.send(&bytes).unwrap();
    let message = to.recv_timeout(TIME_LIMIT).unwrap();
    assert_eq!(&*message, &bytes);
    to.send(&message).unwrap();
    drop(message);
    assert_eq!(&*from.recv_timeout(TIME_LIMIT).unwrap(), &bytes);
}

#[test]
fn many_connections_draw_on_one_pool() {
    const MESSAGES: u64 = 60;
    let lab = DeviceTest::start();
    // The user-space driver of software iWARP can map only about 50 queue pairs.
    let connections = if lab.is_iwarp() { 8 } else { 32 };
    let server = Server::new(&sharing(connections * SHARE * 2));
    let (clients, servers): (Vec<_>, Vec<_>) = server.pairs(connections).into_iter().unzip();
    let sending: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(at, client)| {
            thread::spawn(move || {
                for number in 0..MESSAGES {
                    let number = (at as u64) << 32 | number;
                    client
                        .send(&pattern(number, (number % 3000) as usize))
                        .unwrap();
                }
                assert_eq!(
                    client.recv_timeout(TIME_LIMIT).unwrap().len(),
                    1,
                    "the server must send one byte after it has received all messages"
                );
                client.close().unwrap();
            })
        })
        .collect();
    for number in 0..MESSAGES {
        for (at, server) in servers.iter().enumerate() {
            let number = (at as u64) << 32 | number;
            let message = server.recv_timeout(TIME_LIMIT).unwrap();
            assert_eq!(&*message, pattern(number, (number % 3000) as usize));
        }
    }
    for server in &servers {
        server.send(b"!").unwrap();
    }
    for sending in sending {
        sending.join().unwrap();
    }
    for server in servers {
        server.close().unwrap();
    }
    server.assert_complete(connections * SHARE * 2);
}

#[test]
fn connection_that_holds_messages_stops_no_other() {
    let _test = DeviceTest::start();
    let server = Server::new(&sharing(2 * SHARE + 1));
    let (slow, keeper) = server.pair();
    let (client, other) = server.pair();
    let mut sent = 0;
    let mut held = Vec::new();
    // Send on the slow connection until the sender has no credit. The receiving end holds each
    // message.
    loop {
        match slow.try_send(&pattern(sent, 100)) {
            Ok(()) => sent += 1,
            Err(TrySendError::Full) if held.len() as u64 == sent => {
                // Check that the other connection still delivers messages.
                ping(&client, &other, sent, 1000);
                break;
            }
            Err(TrySendError::Full) => held.push(keeper.recv_timeout(TIME_LIMIT).unwrap()),
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        sent >= 2,
        "a connection must have credit for at least two messages"
    );
    for number in 0..100 {
        ping(&client, &other, number, 1000);
    }
    for (number, message) in (0..).zip(&held) {
        assert_eq!(&**message, pattern(number, 100));
    }
    drop(held);
    ping(&slow, &keeper, sent, 100);
    close(slow, keeper);
    close(client, other);
    server.assert_complete(2 * SHARE + 1);
}

#[test]
fn excess_connection_is_refused_with_reason() {
    let _test = DeviceTest::start();
    let server = Server::new(&sharing(2 * SHARE + 5));
    let mut pairs = server.pairs(2);
    let (here, there) = server.refused();
    assert!(
        matches!(
            here,
            Error::SharedReceivesExhausted {
                total: 39,
                free: 5,
                needed: SHARE
            }
        ),
        "{here}"
    );
    assert!(
        matches!(
            there,
            Error::Connect {
                reason: CloseReason::PeerOutOfResources,
                ..
            }
        ),
        "{there}"
    );
    for (client, server) in &pairs {
        ping(client, server, 1, 500);
    }
    let (client, end) = pairs.remove(0);
    close(client, end);
    let (client, end) = server.pair();
    ping(&client, &end, 2, 500);
}

#[test]
fn kept_messages_outlive_connection_and_are_freed() {
    const COUNT: u32 = 4 * SHARE;
    let _test = DeviceTest::start();
    let server = Server::new(&sharing(COUNT));
    let mut held = Vec::new();
    for round in 0..3 {
        let (client, end) = server.pair();
        for number in 0..2 {
            client.send(&pattern(round * 2 + number, 700)).unwrap();
            held.push(end.recv_timeout(TIME_LIMIT).unwrap());
        }
        // This message is still unread when its connection ends.
        let (unread, end2) = server.pair();
        unread.send(b"nobody reads it").unwrap();
        unread.flush_timeout(TIME_LIMIT).unwrap();
        close(unread, end2);
        // This client aborts the connection instead of closing it.
        client.abort(1);
        assert_eq!(
            reason(end.recv_timeout(TIME_LIMIT)),
            CloseReason::PeerAborted(1)
        );
        drop(end);
    }
    for (number, message) in (0..).zip(&held) {
        assert_eq!(&**message, pattern(number, 700));
    }
    drop(held);
    server.assert_complete(COUNT);
}

#[test]
fn large_messages_and_operations_go_the_same_way() {
    const COUNT: u32 = 3 * SHARE;
    let _test = DeviceTest::start();
    let server = Server::new(&sharing(COUNT));
    let (client, end) = server.pair();
    for (number, len) in [(0, 100_000), (1, 10), (2, 3_000_000), (3, 2048), (4, 2049)] {
        ping(&client, &end, number, len);
        ping(&end, &client, number, len);
    }
    let region = end.one_sided().region(4096, RemoteAccess::WRITE).unwrap();
    let source = client.one_sided().region(4096, RemoteAccess::NONE).unwrap();
    let able = client.info().capabilities.unwrap().write_with_imm;
    let words = if applies(able, "writes with immediate data") {
        0..40
    } else {
        0..0
    };
    for word in words {
        client
            .one_sided()
            .write_with_imm(&source, 0..64, &region.remote(), 0, word, word.into())
            .unwrap();
        match end.next_completion_timeout(TIME_LIMIT).unwrap() {
            rdmsg::Completion::Immediate(immediate) => assert_eq!(immediate.imm_data(), word),
            other => panic!("{other:?}"),
        }
        client.next_completion_timeout(TIME_LIMIT).unwrap();
    }
    ping(&client, &end, 5, 1000);
    drop((region, source));
    close(client, end);
    server.assert_complete(COUNT);
}

#[test]
fn a_busy_connection_is_granted_more_than_its_floor() {
    let _test = DeviceTest::start();
    let server = Server::new(&sharing(20 * SHARE));
    let (client, end) = server.pair();
    // When a client has used up its credits, the server doubles the number of credits. A client
    // that waits for each answer keeps the minimum number: each answer contains a grant, so the
    // client never uses up its credits.
    for number in 0..60 {
        ping(&client, &end, number, 100);
    }
    let answered = client.statistics();
    assert!(
        answered.grants_received < 20,
        "{answered} {}",
        end.statistics()
    );
    for number in 0..60 {
        client.send(&pattern(number, 100)).unwrap();
        end.recv_timeout(TIME_LIMIT).unwrap();
    }
    let mut room = 0;
    while client.try_send(b"x").is_ok() {
        room += 1;
    }
    assert!(
        room >= 8,
        "a busy client must have credit for at least half of the window, not for {room} messages"
    );
    for _ in 0..room {
        end.recv_timeout(TIME_LIMIT).unwrap();
    }
}

#[test]
fn shared_and_own_receives_interoperate() {
    let lab = DeviceTest::start();
    let shared = Server::new(&sharing(2 * SHARE));
    let another = Server::new(&sharing(2 * SHARE));
    let mut own = sharing(2 * SHARE);
    own.shared_receive = None;
    let own = Listener::builder()
        .config(&own)
        .engine(&Engine::new().unwrap())
        .bind(lab.at(0))
        .unwrap();
    let address = own.local_addr();
    // `connect` makes three connections below. Their accepting ends have their own buffers. Their
    // connecting ends use one engine: two of them use shared pools of different sizes, and the
    // third has its own buffers.
    let engine = Engine::new().unwrap();
    let connect = |config| {
        let connector = Connector::new().config(&config).engine(&engine);
        let client = thread::spawn(move || connector.connect(address).unwrap());
        let end = own.accept_timeout(TIME_LIMIT).unwrap();
        (client.join().unwrap(), end)
    };
    let mut pairs = shared.pairs(2);
    pairs.extend(another.pairs(2));
    pairs.push(connect(sharing(2 * SHARE)));
    pairs.push(connect(sharing(2 * SHARE + 6)));
    pairs.push(connect(patient()));
    for number in 0..10 {
        for (client, end) in &pairs {
            ping(client, end, number, 1500);
            ping(end, client, number, 1500);
        }
    }
    let (here, _) = shared.refused();
    assert!(
        matches!(here, Error::SharedReceivesExhausted { .. }),
        "{here}"
    );
}

/// The kernel refuses to watch the connection's descriptor, because the test sets the limit of
/// epoll watches to 0.
#[test]
fn unwatchable_connection_returns_its_buffers() {
    const LIMIT: &str = "/proc/sys/fs/epoll/max_user_watches";
    let _test = DeviceTest::start();
    let server = Server::new(&sharing(2 * SHARE));
    // Keep this connection open, so that the pool continues to exist.
    let (client, end) = server.pair();
    let before = fs::read_to_string(LIMIT).unwrap();
    for _ in 0..3 {
        let client = server.connect();
        let request = server.listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        // The engine already watches the client's end, so the kernel refuses only the server's end.
        fs::write(LIMIT, "0").unwrap();
        let here = request.accept();
        fs::write(LIMIT, &before).unwrap();
        let here = here.unwrap_err();
        let there = client.recv_timeout(TIME_LIMIT).unwrap().unwrap_err();
        assert!(
            matches!(&here, Error::Connect { reason: CloseReason::Os(error), .. }
                if error.call == "epoll_ctl"),
            "{here}"
        );
        assert!(
            matches!(
                there,
                Error::Connect {
                    reason: CloseReason::PeerOutOfResources,
                    ..
                }
            ),
            "{there}"
        );
    }
    let (another, its_end) = server.pair();
    ping(&another, &its_end, 1, 500);
    ping(&client, &end, 2, 500);
}
