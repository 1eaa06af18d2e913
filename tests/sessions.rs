//! Tests of sessions over TCP. A proxy between the two sides cuts their connections.

#[path = "sessions/control.rs"]
mod control;
#[path = "sessions/one_sided.rs"]
mod one_sided;
#[cfg(feature = "tokio")]
#[path = "sessions/tasks.rs"]
mod tasks;

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use common::{TIME_LIMIT, tcp_config};
use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, Outgoing,
    SendBuffer, Transport, TrySendError,
};

/// A proxy that forwards TCP connections to a server until a test cuts them.
struct Proxy {
    address: SocketAddr,
    connections: Arc<Connections>,
}

#[derive(Default)]
struct Connections {
    streams: Mutex<Vec<TcpStream>>,
    is_closed: AtomicBool,
    /// If true, the proxy discards bytes from clients. The proxy still forwards the first bytes of
    /// each connection, because they contain the request.
    discards: AtomicBool,
}

impl Proxy {
    fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(Connections::default());
        let of_thread = Arc::clone(&connections);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server));
                // If the server is unreachable, dropping `client` closes the client's connection.
                let Ok(server) = server else { continue };
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                let mut streams = of_thread.streams.lock().unwrap();
                if of_thread.is_closed.load(Ordering::Relaxed) {
                    continue;
                }
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let connections = Arc::clone(&of_thread);
                    let is_client = from.local_addr().unwrap() == address;
                    thread::spawn(move || carry(from, to, &connections, is_client));
                }
                streams.extend([client, server]);
            }
        });
        Self {
            address,
            connections,
        }
    }

    /// Ends all connections.
    fn cut(&self) {
        for stream in self.connections.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends all connections, and refuses new connections.
    fn close(&self) {
        self.connections.is_closed.store(true, Ordering::Relaxed);
        self.cut();
    }

    fn discard(&self, discards: bool) {
        self.connections.discards.store(discards, Ordering::Relaxed);
    }

    fn open(&self) {
        self.connections.is_closed.store(false, Ordering::Relaxed);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, connections: &Connections, is_client: bool) {
    let _: io::Result<()> = (|| {
        let mut buffer = vec![0; 64 << 10];
        for number in 0.. {
            let len = from.read(&mut buffer)?;
            if len == 0 {
                return to.shutdown(Shutdown::Write);
            }
            if number == 0 || !is_client || !connections.discards.load(Ordering::Relaxed) {
                to.write_all(&buffer[..len])?;
            }
        }
        Ok(())
    })();
}

fn config() -> Config {
    tcp_config().with(|config| {
        config.resume = TIME_LIMIT;
        config.close_timeout = TIME_LIMIT;
        config.eager_size = Some(1000);
        config.receive_window = Some(8);
        config.send_depth = Some(4);
    })
}

fn listener() -> (Listener, SocketAddr) {
    let listener = Listener::builder()
        .config(&config())
        .bind("127.0.0.1:0")
        .unwrap();
    let address = listener.local_addr();
    (listener, address)
}

fn connect(config: &Config, address: SocketAddr) -> Endpoint {
    Connector::new().config(config).connect(address).unwrap()
}

/// Returns both ends of a session, the proxy between them, and the listener. Sessions can be
/// resumed only while the listener exists.
fn pair() -> (Endpoint, Endpoint, Proxy, Listener) {
    let (listener, address) = listener();
    let proxy = Proxy::new(address);
    let client = connect(&config(), proxy.address);
    (client, listener.accept().unwrap(), proxy, listener)
}

/// Returns message `number`. Every 20th message is larger than the eager size.
fn message(number: u32) -> Vec<u8> {
    let len = if number % 20 == 7 {
        50_000
    } else {
        number as usize % 900
    };
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(4 + len, number as u8);
    bytes
}

const MESSAGES: u32 = 3000;

/// Sends all messages, and calls `cut` after every 500th message.
fn send_all(endpoint: &Endpoint, cut: impl Fn()) {
    let mut number = 0;
    let mut cuts = 0;
    while number < MESSAGES {
        if number / 500 > cuts {
            cuts += 1;
            cut();
        }
        match number % 10 {
            3 => {
                let batch = [message(number), message(number + 1)];
                let slices = batch.each_ref().map(|bytes| io::IoSlice::new(bytes));
                number += endpoint.send_batch(&slices).unwrap() as u32;
            }
            8 => {
                let bytes = message(number);
                let mut buffer = SendBuffer::new(endpoint, bytes.len()).unwrap();
                buffer.copy_from_slice(&bytes);
                endpoint.send(buffer).unwrap();
                number += 1;
            }
            _ => {
                endpoint.send(&message(number)).unwrap();
                number += 1;
            }
        }
    }
}

fn receive_all(endpoint: &Endpoint) {
    let mut held = Vec::new();
    for number in 0..MESSAGES {
        let received = endpoint.recv().unwrap();
        assert!(received == message(number), "message {number}");
        // Hold some messages, so that a cut happens while they are held.
        held.push(received);
        if held.len() > number as usize % 6 {
            held.clear();
        }
    }
}

#[test]
fn messages_arrive_once_and_in_order_over_many_cuts() {
    let (client, server, proxy, _listener) = pair();
    thread::scope(|scope| {
        scope.spawn(|| send_all(&client, || proxy.cut()));
        scope.spawn(|| send_all(&server, || ()));
        scope.spawn(|| receive_all(&client));
        scope.spawn(|| receive_all(&server));
    });
    // The client sends 500 messages between two cuts. The window holds fewer messages, so the
    // session must resume after each cut.
    for side in [client.statistics(), server.statistics()] {
        assert!(side.resumes >= 5, "{side:?}");
    }
    assert!(client.statistics().resent + server.statistics().resent > 0);
    client.flush().unwrap();
    client.close().unwrap();
    assert!(matches!(
        server.recv(),
        Err(Error::Disconnected(CloseReason::PeerClosed))
    ));
}

/// Receives completions until the connection ends. Returns the ids of sent messages, the ids of
/// failed messages, and the reason for the end.
fn outcome(endpoint: &Endpoint) -> (Vec<u64>, Vec<u64>, CloseReason) {
    let (mut sent, mut failed) = (Vec::new(), Vec::new());
    loop {
        match endpoint.next_completion_timeout(TIME_LIMIT).unwrap() {
            Completion::Sent(id) => sent.push(id),
            Completion::Failed { id, .. } => failed.push(id),
            Completion::Disconnected(reason) => return (sent, failed, reason),
            _ => {}
        }
    }
}

#[test]
fn ids_are_reported_once_over_a_cut() {
    let (client, server, proxy, _listener) = pair();
    // If the program has not taken enough completions, a send with an id waits only if another
    // thread takes completions. Without such a thread, the send fails. This call registers the main
    // thread as the thread that takes completions, before the sends start.
    assert!(client.try_next_completion().unwrap().is_none());
    let (sent, failed, _) = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200_u64 {
                let bytes = message(number as u32);
                client.send(Outgoing::from(&bytes).with_id(number)).unwrap();
                if number % 40 == 20 {
                    proxy.cut();
                }
            }
            client.close().unwrap();
        });
        scope.spawn(|| while server.recv_timeout(TIME_LIMIT).is_ok() {});
        outcome(&client)
    });
    assert_eq!(sent, Vec::from_iter(0..200));
    assert!(failed.is_empty());
}

/// Does the same as [`pair`], and returns while the client resends messages. The client has sent a
/// batch of seven messages, and then a message with the id 1. When the client resends the batch,
/// each message of the batch needs its own send slot, but the send depth is only 4. So there is no
/// free slot yet for the message with the id.
fn resending() -> (Endpoint, Endpoint, Proxy, Listener) {
    let (client, server, proxy, listener) = pair();
    proxy.discard(true);
    let parts = [[7; 50]; 7];
    let slices = parts.each_ref().map(|part| io::IoSlice::new(part));
    assert_eq!(client.send_batch(&slices).unwrap(), 7);
    client.send(Outgoing::from(b"last").with_id(1)).unwrap();
    proxy.cut();
    while client.statistics().resumes == 0 {
        thread::yield_now();
    }
    (client, server, proxy, listener)
}

#[test]
fn id_is_reported_once_if_a_resend_is_cut() {
    let (client, server, proxy, _listener) = resending();
    // The proxy has discarded bytes of this connection, so the stream has a gap. End the connection
    // before the proxy forwards further bytes.
    proxy.close();
    proxy.discard(false);
    proxy.open();
    let (sent, failed, _) = thread::scope(|scope| {
        scope.spawn(|| while server.recv_timeout(TIME_LIMIT).is_ok() {});
        client.close().unwrap();
        outcome(&client)
    });
    assert_eq!((sent, failed), (vec![1], vec![]));
}

#[test]
fn id_is_reported_once_if_a_session_ends_in_a_resend() {
    let (client, _server, _proxy, _listener) = resending();
    client.abort(1);
    let (sent, failed, _) = outcome(&client);
    assert_eq!((sent, failed), (vec![], vec![1]));
}

#[test]
fn restarted_peer_has_lost_the_session() {
    let (client, server, proxy, listener) = pair();
    client.send(Outgoing::from(b"arrived").with_id(1)).unwrap();
    client.flush().unwrap();
    assert_eq!(server.recv().unwrap(), b"arrived");
    client.send(Outgoing::from(b"late").with_id(2)).unwrap();
    proxy.close();
    // The client cannot distinguish this abort from a restart of the server.
    server.abort(0);
    drop(server);
    proxy.open();
    let (sent, failed, reason) = outcome(&client);
    assert_eq!(reason, CloseReason::SessionLost);
    assert_eq!([&sent[..], &failed[..]].concat(), [1, 2]);
    assert!(sent.contains(&1));
    drop(listener);
}

/// `drain` first closes the engine's listeners, so the client cannot resume its session.
#[test]
fn drain_ends_suspended_sessions() {
    let engine = Engine::new().unwrap();
    let long = config().with(|config| config.resume = Duration::from_secs(600));
    let listener = Listener::builder().config(&long).engine(&engine);
    let listener = listener.bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::new(listener.local_addr());
    let client = connect(&long, proxy.address);
    let server = listener.accept().unwrap();
    client.send(b"before").unwrap();
    assert_eq!(server.recv().unwrap(), b"before");
    proxy.close();
    let suspended = server.next_completion().unwrap();
    assert!(
        matches!(suspended, Completion::Suspended { .. }),
        "{suspended:?}"
    );
    assert_eq!(engine.drain(TIME_LIMIT).unwrap(), 0);
    assert!(matches!(server.recv(), Err(Error::Disconnected(_))));
    engine.shutdown();
}

#[test]
fn suspension_timeout_reports_reason_of_the_loss() {
    let (listener, address) = listener();
    let proxy = Proxy::new(address);
    let brief = config().with(|config| config.resume = Duration::from_millis(300));
    let client = connect(&brief, proxy.address);
    let _server = listener.accept().unwrap();
    proxy.close();
    match client.recv() {
        Err(Error::Disconnected(reason)) => assert!(reason.is_loss(), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn loss_ends_connection_to_peer_without_sessions() {
    let (listener, address) = listener();
    let proxy = Proxy::new(address);
    let plain = config().with(|config| config.resume = Duration::ZERO);
    let client = connect(&plain, proxy.address);
    let server = listener.accept().unwrap();
    client.send(b"first").unwrap();
    assert_eq!(server.recv().unwrap(), b"first");
    proxy.cut();
    for endpoint in [client, server] {
        match endpoint.recv() {
            Err(Error::Disconnected(CloseReason::PeerDisconnected)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn finish_flush_and_close_wait_for_resumption() {
    let (client, server, proxy, _listener) = pair();
    proxy.close();
    // Some of these messages fit into the window. The others wait for the session's next
    // connection.
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..20 {
                client.send(&message(number)).unwrap();
            }
            client.finish().unwrap();
            client.flush().unwrap();
        });
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            proxy.open();
        });
        scope.spawn(|| {
            for number in 0..20 {
                assert!(server.recv().unwrap() == message(number));
            }
            assert!(matches!(server.recv(), Err(Error::PeerFinished)));
        });
    });
    proxy.cut();
    server.send(b"after the finish").unwrap();
    assert_eq!(client.recv().unwrap(), b"after the finish");
    proxy.close();
    thread::scope(|scope| {
        let closed = scope.spawn(|| client.close());
        thread::sleep(Duration::from_millis(200));
        proxy.open();
        closed.join().unwrap().unwrap();
    });
    assert!(matches!(
        server.recv(),
        Err(Error::PeerFinished | Error::Disconnected(CloseReason::PeerClosed))
    ));
}

#[test]
fn refused_send_gets_room_report_after_resume() {
    let (client, server, proxy, _listener) = pair();
    proxy.close();
    while client.try_send(b"any").is_ok() {}
    proxy.open();
    loop {
        if let Completion::Room = client.next_completion().unwrap() {
            break;
        }
    }
    client.send(b"last").unwrap();
    while server.recv().unwrap() != b"last" {}
}

/// Sends at least 50 numbered messages in each direction, and continues until the client has
/// resumed `resumes` times. Asserts that the client has not resumed more often.
fn converse(client: &Endpoint, server: &Endpoint, resumes: u64) {
    let mut number = 0;
    while number < 50 || client.statistics().resumes < resumes {
        for (from, to) in [(client, server), (server, client)] {
            from.send(&message(number)).unwrap();
            let received = to.recv_timeout(TIME_LIMIT).unwrap();
            assert!(received == message(number), "message {number}");
        }
        number += 1;
    }
    assert_eq!(client.statistics().resumes, resumes);
}

#[test]
fn session_goes_on_at_another_address() {
    assert!((0..20).any(|_| goes_on_at_another_address()));
}

/// Returns false if a resumption took 2 s or longer. An attempt to resume can then have timed out,
/// and the session continues at a later address than the test expects.
fn goes_on_at_another_address() -> bool {
    let (listener, address) = listener();
    let (_other, other_address) = self::listener();
    let [first, second] = [Proxy::new(address), Proxy::new(address)];
    let connector = Connector::new().config(&config());
    let connector = connector.alternatives(second.address).unwrap();
    let connector = connector.alternatives(other_address).unwrap();
    let client = connector.connect(first.address).unwrap();
    let server = listener.accept().unwrap();
    let is_slow = || client.statistics().longest_gap_ms >= 2000;
    converse(&client, &server, 0);
    assert_eq!(client.peer_addr(), first.address);
    let before = (client.info().local_addr, server.peer_addr());
    first.close();
    converse(&client, &server, 1);
    if is_slow() {
        return false;
    }
    assert_eq!(client.peer_addr(), second.address);
    assert_ne!(client.info().local_addr, before.0);
    assert_ne!(server.peer_addr(), before.1);
    // The client resumes at the address of its previous connection, although the first proxy is
    // open again.
    first.open();
    second.cut();
    converse(&client, &server, 2);
    if is_slow() {
        return false;
    }
    assert_eq!(client.peer_addr(), second.address);
    // Another listener of the same engine can accept the session, even if the first listener is
    // closed.
    drop(listener);
    first.close();
    second.close();
    converse(&client, &server, 3);
    if is_slow() {
        return false;
    }
    assert_eq!(client.peer_addr(), other_address);
    assert_eq!(client.info().local_addr, server.peer_addr());
    client.close().unwrap();
    assert!(matches!(
        server.recv(),
        Err(Error::Disconnected(CloseReason::PeerClosed))
    ));
    true
}

#[test]
fn stranger_at_an_alternative_ends_no_session() {
    let (listener, address) = listener();
    let proxy = Proxy::new(address);
    // `text` is a listener of a program that does not use rdmsg. `foreign` is a listener of
    // another engine.
    let text = TcpListener::bind("127.0.0.1:0").unwrap();
    let engine = Engine::new().unwrap();
    let foreign = Listener::builder().config(&config()).engine(&engine);
    let foreign = foreign.bind("127.0.0.1:0").unwrap();
    let connector = Connector::new().config(&config());
    let connector = connector.alternatives(text.local_addr().unwrap()).unwrap();
    let connector = connector.alternatives(foreign.local_addr()).unwrap();
    let (tell, asked) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for client in text.incoming() {
            client
                .unwrap()
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
            let _ = tell.send(());
        }
    });
    let client = connector.connect(proxy.address).unwrap();
    let server = listener.accept().unwrap();
    proxy.close();
    // The client tries its addresses one after another, and then starts again with the first
    // address. When the client connects to `text` for the second time, it has tried each address.
    for _ in 0..2 {
        asked.recv().unwrap();
    }
    proxy.open();
    converse(&client, &server, 1);
    assert_eq!(client.peer_addr(), proxy.address);
    // A rejection is final if it comes from an address at which the client has previously reached
    // the peer.
    server.abort(0);
    drop(server);
    match client.recv_timeout(TIME_LIMIT) {
        Err(Error::Disconnected(CloseReason::PeerAborted(0) | CloseReason::SessionLost)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_of_a_stream_are_whole_over_cuts() {
    let listener = Listener::builder()
        .config(&config())
        .bind_stream("127.0.0.1:0")
        .unwrap();
    let proxy = Proxy::new(listener.local_addr().unwrap());
    let mut client = Connector::new()
        .config(&config())
        .connect_stream(proxy.address)
        .unwrap();
    let mut server = listener.accept().unwrap().0;
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|at| (at / 7) as u8).collect();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read = Vec::new();
            server.read_to_end(&mut read).unwrap();
            read
        });
        for part in bytes.chunks(100_000) {
            client.write_all(part).unwrap();
            proxy.cut();
        }
        client.shutdown(Shutdown::Write).unwrap();
        let read = reader.join().unwrap();
        let first = read.iter().zip(&bytes).position(|(a, b)| a != b);
        assert_eq!((read.len(), first), (bytes.len(), None));
    });
}

#[test]
fn every_message_may_be_followed_by_a_cut() {
    let (client, server, proxy, _listener) = pair();
    for number in 0..3 {
        client.send(&message(number)).unwrap();
        proxy.cut();
        assert!(server.recv().unwrap() == message(number));
    }
    assert!(client.statistics().resumes > 0);
}

/// Waits until the endpoint reports the loss of its connection.
fn wait_for_loss(endpoint: &Endpoint) {
    match endpoint.next_completion().unwrap() {
        Completion::Suspended { reason } => assert!(reason.is_loss(), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn loss_and_resumption_come_in_order_with_messages() {
    let (client, server, proxy, _listener) = pair();
    for turn in 1..=2 {
        server.send(b"before").unwrap();
        server.flush().unwrap();
        proxy.close();
        let next = || client.next_completion().unwrap();
        assert!(matches!(next(), Completion::Received(message) if message == b"before"));
        assert!(matches!(next(), Completion::Suspended { reason } if reason.is_loss()));
        proxy.open();
        server.send(b"after").unwrap();
        let Completion::Resumed {
            number,
            resent,
            transport,
        } = next()
        else {
            panic!("the session was not resumed")
        };
        assert_eq!((number, resent, transport), (turn, 0, Transport::Tcp));
        assert_eq!(client.statistics().resumes, turn);
        assert!(matches!(next(), Completion::Received(message) if message == b"after"));
    }
}

#[test]
fn untaken_losses_fill_no_channel() {
    let (client, server, proxy, _listener) = pair();
    for number in 0..20 {
        proxy.cut();
        client.send(&message(number)).unwrap();
        client.flush().unwrap();
        drop(server.recv().unwrap());
    }
    assert_eq!(client.statistics().resumes, 20);
    // The server also counts a connection that the client abandons because the answer is late.
    assert!(server.statistics().resumes >= 20);
    client.close().unwrap();
    // The client has only one `Suspended` and one `Resumed` completion for all 20 losses. The
    // server has none, because its calls of `recv` have dropped these completions.
    let mut events = Vec::new();
    loop {
        match client.next_completion().unwrap() {
            Completion::Suspended { .. } => events.push("suspended"),
            Completion::Resumed { number: 1, .. } => events.push("resumed"),
            Completion::Disconnected(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events, ["suspended", "resumed"]);
    assert!(server.recv().is_err());
    assert!(server.try_next_completion().is_err());
}

#[test]
fn send_buffer_waits_for_resumption() {
    let (client, server, proxy, _listener) = pair();
    proxy.close();
    wait_for_loss(&client);
    assert!(matches!(
        SendBuffer::try_new(&client, 5),
        Err(TrySendError::Full)
    ));
    assert!(matches!(
        SendBuffer::new_timeout(&client, 5, Duration::from_millis(1)),
        Err(Error::TimedOut)
    ));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| SendBuffer::new(&client, 5));
        proxy.open();
        let mut buffer = waiting.join().unwrap().unwrap();
        buffer.copy_from_slice(b"whole");
        client.send(buffer).unwrap();
    });
    assert_eq!(server.recv().unwrap(), b"whole");
    // The completion `Room` reports that the refused call can be retried.
    while !matches!(client.next_completion().unwrap(), Completion::Room) {}
    assert_eq!(SendBuffer::try_new(&client, 7).unwrap().len(), 7);
}

#[test]
fn send_buffer_stops_waiting_at_the_end() {
    let (client, _server, proxy, _listener) = pair();
    proxy.close();
    wait_for_loss(&client);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| SendBuffer::new(&client, 5));
        client.abort(7);
        assert!(matches!(
            waiting.join().unwrap(),
            Err(Error::Disconnected(CloseReason::LocallyAborted))
        ));
    });
}
