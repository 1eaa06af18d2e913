//! Tests that close sessions while a proxy drops frames and cuts the connection.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use common::{TIME_LIMIT, tcp_config};
use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Error, Listener, Outgoing, TrySendError,
};

/// The sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Client,
    Server,
}

/// A frame: its sender and its kind.
type Frame = (From, u8);

const DATA: u8 = 1;
const CLOSE: u8 = 5;
const CLOSE_ACK: u8 = 7;

/// A fault that the proxy injects: it drops frames of one side, and then cuts the connection.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The first dropped frame. The proxy also drops the sender's later PDUs on this connection.
    first_dropped: Frame,
    /// The frame after which the proxy cuts the connection. This frame can be a dropped frame.
    cut_after: Frame,
}

/// A proxy that forwards TCP connections to a server.
struct Proxy {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    cut: Option<Cut>,
    is_closed: bool,
    streams: Vec<TcpStream>,
}

impl Shared {
    fn hang_up(&mut self) {
        for stream in self.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                let mut shared = of_thread.lock().unwrap();
                if shared.is_closed {
                    continue;
                }
                for (from, to, sender) in [
                    (&client, &server, From::Client),
                    (&server, &client, From::Server),
                ] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    to.set_nodelay(true).unwrap();
                    let shared = Arc::clone(&of_thread);
                    thread::spawn(move || carry(from, to, sender, &shared));
                }
                shared.streams.extend([client, server]);
            }
        });
        Self { address, shared }
    }

    fn close(&self) {
        let mut shared = self.shared.lock().unwrap();
        shared.is_closed = true;
        shared.hang_up();
    }

    fn open(&self) {
        self.shared.lock().unwrap().is_closed = false;
    }

    fn cut(&self, cut: Cut) {
        self.shared.lock().unwrap().cut = Some(cut);
    }

    /// Sets the next cut. From now on, the proxy closes each new connection, until
    /// [`open`](Self::open) is called.
    fn cut_for_good(&self, cut: Cut) {
        let mut shared = self.shared.lock().unwrap();
        (shared.cut, shared.is_closed) = (Some(cut), true);
    }

    fn has_cut(&self) -> bool {
        self.shared.lock().unwrap().cut.is_none()
    }

    fn wait_for_cut(&self) {
        let begun = Instant::now();
        while !self.has_cut() {
            assert!(
                begun.elapsed() < TIME_LIMIT,
                "the proxy must cut the connection within {TIME_LIMIT:?}"
            );
            thread::yield_now();
        }
    }
}

/// Forwards a setup message, and then PDUs. If a fault drops a frame, reads this frame and all
/// later PDUs without forwarding them.
fn carry(mut from: TcpStream, mut to: TcpStream, sender: From, shared: &Mutex<Shared>) {
    let _: io::Result<()> = (|| {
        let mut setup = vec![0; 8];
        from.read_exact(&mut setup)?;
        setup.resize(8 + usize::from(setup[7]), 0);
        from.read_exact(&mut setup[8..])?;
        to.write_all(&setup)?;
        let mut has_lost = false;
        loop {
            let mut pdu = vec![0; 8];
            if let Err(error) = from.read_exact(&mut pdu) {
                to.shutdown(Shutdown::Write)?;
                return Err(error);
            }
            let len = u32::from_be_bytes(pdu[4..].try_into().unwrap());
            pdu.resize(8 + len as usize, 0);
            from.read_exact(&mut pdu[8..])?;
            // A Send PDU contains a frame.
            let frame = (pdu[0] == 1).then(|| (sender, pdu[8]));
            let cut = shared.lock().unwrap().cut;
            has_lost |= cut.is_some_and(|cut| frame == Some(cut.first_dropped));
            if !has_lost {
                to.write_all(&pdu)?;
            }
            if cut.is_some_and(|cut| frame == Some(cut.cut_after)) {
                let mut shared = shared.lock().unwrap();
                shared.cut = None;
                shared.hang_up();
            }
        }
    })();
}

fn config() -> Config {
    tcp_config().with(|config| {
        config.resume = TIME_LIMIT;
        config.close_timeout = TIME_LIMIT;
    })
}

/// Returns the configuration of a server that waits only briefly for its close to complete.
fn short_close() -> Config {
    config().with(|config| config.close_timeout = Duration::from_millis(200))
}

fn pair(of_client: &Config, of_server: &Config) -> (Endpoint, Endpoint, Proxy, Listener) {
    let builder = Listener::builder().config(of_server);
    let listener = builder.bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::new(listener.local_addr());
    let connector = Connector::new().config(of_client);
    let client = connector.connect(proxy.address).unwrap();
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    (client, server, proxy, listener)
}

fn next(endpoint: &Endpoint) -> Completion {
    endpoint.next_completion_timeout(TIME_LIMIT).unwrap()
}

/// Receives completions until the connection ends. Returns the ids of sent messages, the ids of
/// failed messages, the number of received messages, and the reason for the end.
fn outcome(endpoint: &Endpoint) -> (Vec<u64>, Vec<u64>, usize, CloseReason) {
    let (mut sent, mut failed, mut received) = (Vec::new(), Vec::new(), 0);
    loop {
        match next(endpoint) {
            Completion::Sent(id) => sent.push(id),
            Completion::Failed { id, .. } => failed.push(id),
            Completion::Received(_) => received += 1,
            Completion::Disconnected(reason) => return (sent, failed, received, reason),
            _ => {}
        }
    }
}

fn send(endpoint: &Endpoint, ids: std::ops::Range<u64>) {
    for id in ids {
        endpoint
            .send(Outgoing::from(b"message").with_id(id))
            .unwrap();
    }
}

/// Closes the session on the side `closer` while the proxy injects the fault `cut`. Asserts that
/// both sides then know which messages have arrived.
fn close_over(closer: From, cut: Cut) {
    let (client, server, proxy, _listener) = pair(&config(), &config());
    send(&client, 0..5);
    send(&server, 0..3);
    client.flush().unwrap();
    server.flush().unwrap();
    proxy.cut(cut);
    let (closer, other) = match closer {
        From::Client => (&client, &server),
        From::Server => (&server, &client),
    };
    closer
        .close()
        .unwrap_or_else(|error| panic!("{cut:?}: {error}"));
    assert!(proxy.has_cut(), "{cut:?}");
    let all = |endpoint: &Endpoint| {
        let (sent, failed, received, reason) = outcome(endpoint);
        assert_eq!(failed, [], "{cut:?}");
        (sent.len(), received, reason)
    };
    let (of_closer, of_other) = (all(closer), all(other));
    let (least, most) = (of_closer.0.min(of_other.0), of_closer.0.max(of_other.0));
    assert_eq!((least, most), (3, 5), "{cut:?}");
    assert_eq!(of_closer.1, of_other.0, "{cut:?}");
    assert_eq!(of_other.1, of_closer.0, "{cut:?}");
    assert_eq!(of_closer.2, CloseReason::LocallyClosed, "{cut:?}");
    assert_eq!(of_other.2, CloseReason::PeerClosed, "{cut:?}");
    other
        .close()
        .unwrap_or_else(|error| panic!("{cut:?}: {error}"));
}

#[test]
fn lost_close_is_repeated() {
    for closer in [From::Client, From::Server] {
        let close = (closer, CLOSE);
        close_over(
            closer,
            Cut {
                first_dropped: close,
                cut_after: close,
            },
        );
    }
}

#[test]
fn lost_answer_to_close_is_repeated() {
    for (closer, other) in [(From::Client, From::Server), (From::Server, From::Client)] {
        for kind in [CLOSE, CLOSE_ACK] {
            let answer = (other, kind);
            close_over(
                closer,
                Cut {
                    first_dropped: answer,
                    cut_after: answer,
                },
            );
        }
    }
}

/// The server has received all frames that it needs, so it has ended the session before the client
/// asks to resume the session.
#[test]
fn lost_acknowledgement_is_sent_after_session_end() {
    for closer in [From::Client, From::Server] {
        close_over(
            closer,
            Cut {
                first_dropped: (From::Server, CLOSE_ACK),
                cut_after: (From::Client, CLOSE_ACK),
            },
        );
    }
}

/// Injects a fault that drops the frame `first_dropped`, and closes the session at the server.
/// Returns the outcome at the client, which has sent three messages.
fn close_while_cut_off(first_dropped: Frame) -> (Vec<u64>, Vec<u64>, usize, CloseReason) {
    let (client, server, proxy, _listener) = pair(&config(), &short_close());
    send(&client, 0..2);
    client.flush().unwrap();
    proxy.cut_for_good(Cut {
        first_dropped,
        cut_after: (From::Client, DATA),
    });
    send(&server, 0..1);
    send(&client, 2..3);
    proxy.wait_for_cut();
    assert!(matches!(server.close(), Err(Error::Undelivered(_))));
    proxy.open();
    let outcome = outcome(&client);
    assert!(client.close().is_err());
    outcome
}

/// The client has received all frames that it needs. The server cannot ask to resume the session,
/// because only clients connect.
#[test]
fn lost_acknowledgement_of_client_is_repeated() {
    for closer in [From::Client, From::Server] {
        for sender in [From::Client, From::Server] {
            close_over(
                closer,
                Cut {
                    first_dropped: (From::Client, CLOSE_ACK),
                    cut_after: (sender, CLOSE_ACK),
                },
            );
        }
    }
}

#[test]
fn client_learns_of_message_that_it_missed() {
    let (sent, failed, received, reason) = close_while_cut_off((From::Server, DATA));
    assert_eq!((sent, failed, received), (vec![0, 1, 2], vec![], 0));
    assert_eq!(reason, CloseReason::Truncated { missing: 1 });
}

#[test]
fn client_learns_of_message_that_server_missed() {
    let (sent, failed, _, reason) = close_while_cut_off((From::Client, DATA));
    assert_eq!((sent, failed), (vec![0, 1], vec![2]));
    assert!(matches!(
        reason,
        CloseReason::PeerClosed | CloseReason::Truncated { missing: 1 }
    ));
}

#[test]
fn client_that_missed_nothing_learns_of_clean_close() {
    let (client, server, proxy, _listener) = pair(&config(), &short_close());
    send(&client, 0..2);
    send(&server, 0..1);
    client.flush().unwrap();
    server.flush().unwrap();
    proxy.close();
    assert!(matches!(server.close(), Err(Error::Undelivered(_))));
    proxy.open();
    let (sent, failed, received, reason) = outcome(&client);
    assert_eq!((sent, failed, received), (vec![0, 1], vec![], 1));
    assert_eq!(reason, CloseReason::PeerClosed);
    client.close().unwrap();
}

#[test]
fn close_of_client_finds_that_server_has_closed() {
    let (client, server, proxy, _listener) = pair(&config(), &short_close());
    send(&client, 0..2);
    client.flush().unwrap();
    for id in 0..2 {
        assert!(matches!(next(&client), Completion::Sent(sent) if sent == id));
    }
    proxy.close();
    assert!(matches!(next(&client), Completion::Suspended { .. }));
    assert!(matches!(server.close(), Err(Error::Undelivered(_))));
    thread::scope(|scope| {
        let closed = scope.spawn(|| client.close());
        // Wait until the close has begun. Before the close, `try_send` can return `Full`, because
        // the session has no connection. Once the close has begun, `try_send` returns another
        // error.
        while let Err(TrySendError::Full) = client.try_send(b"late") {
            thread::yield_now();
        }
        proxy.open();
        closed.join().unwrap().unwrap();
    });
    let (sent, failed, _, reason) = outcome(&client);
    assert_eq!((sent, failed), (vec![], vec![]));
    assert_eq!(reason, CloseReason::LocallyClosed);
}
