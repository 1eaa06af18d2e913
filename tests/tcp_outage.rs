//! Tests of connections over TCP during an outage of several seconds. To simulate the outage, the
//! tests attach a filter to each socket. The filter drops all arriving packets. Also tests the
//! Failure frame, which reports an expired timeout to the peer.
#![allow(unsafe_code)]

use std::{
    fs,
    io::Read,
    os::fd::RawFd,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{
    TIME_LIMIT,
    tcp_peer::{Stage as RawStage, pdu},
};
use nix::sys::socket::{SockaddrIn, getpeername, getsockname};
use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, TransportChoice,
    error::PeerTimeout,
};

/// The listener of a test, and the configuration of its connections.
struct Stage {
    listener: Listener,
    config: Config,
}

/// The sockets of all connections during an outage. These sockets drop all arriving packets.
struct Cut(Vec<RawFd>);

impl Stage {
    fn new() -> Self {
        Self::with(Config::default())
    }

    /// Creates a stage over TCP, with `config` on both sides.
    fn with(config: Config) -> Self {
        let config = config.with(|c| {
            c.transport = TransportChoice::Tcp;
            c.connect_timeout = TIME_LIMIT;
        });
        let engine = Engine::new().unwrap();
        let listener = Listener::builder()
            .config(&config)
            .engine(&engine)
            .bind("127.0.0.1:0")
            .unwrap();
        Self { listener, config }
    }

    /// Connects with a new engine. On a shared engine, another connection could prove that the peer
    /// is alive.
    fn connect(&self) -> (Endpoint, Endpoint, Engine) {
        let engine = Engine::new().unwrap();
        let connector = Connector::new().engine(&engine).config(&self.config);
        let client = connector.connect(self.listener.local_addr()).unwrap();
        let server = self.listener.accept().unwrap();
        (client, server, engine)
    }

    /// Starts the outage: the sockets of all connections drop arriving packets.
    fn cut(&self) -> Cut {
        let port = self.listener.local_addr().port();
        let names = fs::read_dir("/proc/self/fd").unwrap();
        let fds = names.filter_map(|name| name.unwrap().file_name().to_str()?.parse().ok());
        let fds: Vec<RawFd> = fds
            .filter(|fd| {
                let Ok(peer) = getpeername::<SockaddrIn>(*fd) else {
                    return false;
                };
                let here = getsockname::<SockaddrIn>(*fd);
                peer.port() == port || here.is_ok_and(|here| here.port() == port)
            })
            .collect();
        assert!(!fds.is_empty());
        for fd in &fds {
            filter(*fd, true);
        }
        Cut(fds)
    }
}

impl Cut {
    /// Ends the outage: the sockets receive packets again.
    fn restore(self) {
        for fd in &self.0 {
            filter(*fd, false);
        }
    }
}

/// If `drops` is true, makes a socket drop all arriving packets. If `drops` is false, makes the
/// socket receive packets again, and ignores errors, because the connection may have ended.
fn filter(fd: RawFd, drops: bool) {
    let mut nothing = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: ptr::from_mut(&mut nothing),
    };
    let option = if drops {
        libc::SO_ATTACH_FILTER
    } else {
        libc::SO_DETACH_FILTER
    };
    // SAFETY: `program` and its BPF instruction `nothing` outlive the call.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    assert!(result == 0 || !drops, "{}", std::io::Error::last_os_error());
}

/// Sends a message every 10 ms until `ends` is set, and then finishes. Returns the number of sent
/// messages.
fn send_until(endpoint: &Endpoint, ends: &AtomicBool) -> Result<u64, Error> {
    let mut count = 0;
    while !ends.load(Ordering::SeqCst) {
        endpoint.send_timeout(b"a message of a busy connection", TIME_LIMIT)?;
        count += 1;
        thread::sleep(Duration::from_millis(10));
    }
    endpoint.finish()?;
    Ok(count)
}

fn count_messages(endpoint: &Endpoint) -> Result<u64, Error> {
    let mut count = 0;
    loop {
        match endpoint.recv_timeout(TIME_LIMIT) {
            Ok(_) => count += 1,
            Err(Error::PeerFinished) => return Ok(count),
            Err(error) => return Err(error),
        }
    }
}

fn exchange(client: &Endpoint, server: &Endpoint) -> Result<(), Error> {
    for (from, to) in [(client, server), (server, client)] {
        from.send(b"still there")?;
        assert_eq!(*to.recv_timeout(TIME_LIMIT)?, *b"still there");
    }
    Ok(())
}

/// Repeats `attempt` until it is short enough. `attempt` returns a result, and a duration that a
/// busy machine can prolong.
///
/// The kernel retransmits 3.0 s after a loss, and again 3.2 s later. If an outage lasts longer, the
/// retransmission is lost, too.
fn shorter_than<T>(longest: Duration, mut attempt: impl FnMut() -> (Duration, T)) -> T {
    for _ in 0..20 {
        let (duration, result) = attempt();
        if duration < longest {
            return result;
        }
    }
    panic!("this machine is too slow: all attempts lasted longer than {longest:?}");
}

/// A connection may send a keepalive probe at any time during the outage. The outage is shorter
/// than the default `keepalive_timeout` of 3 s, so it must not end any connection.
#[test]
fn outage_ends_no_idle_connection() {
    const OUTAGE: Duration = Duration::from_millis(2500);
    let pairs = shorter_than(Duration::from_millis(2900), || {
        let stage = Stage::new();
        let mut pairs = Vec::new();
        // Open the connections at different times, so that their keepalive timers differ.
        for _ in 0..16 {
            pairs.push(stage.connect());
            thread::sleep(Duration::from_millis(130));
        }
        let begun = Instant::now();
        let cut = stage.cut();
        thread::sleep(OUTAGE);
        cut.restore();
        (begun.elapsed(), pairs)
    });
    // Wait until the kernel has retransmitted the probes that were lost during the outage.
    thread::sleep(2 * OUTAGE);
    for (client, server, _engine) in &pairs {
        exchange(client, server).unwrap();
    }
}

/// Keepalive sends a probe after at least 1 s of silence, and waits 3 s for an answer. If the
/// peer's kernel has not acknowledged all bytes by then, keepalive waits up to 3 s more for the
/// next retransmission. So the silence may last 7 s. The kernel retransmits lost bytes within 6.4
/// s, which is twice the duration of the outage.
#[test]
fn longer_outage_ends_no_busy_connection() {
    const OUTAGE: Duration = Duration::from_millis(3200);
    let results = shorter_than(Duration::from_secs(6), || {
        let stage = Stage::new();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut threads = Vec::new();
            let mut engines = Vec::new();
            for _ in 0..8 {
                let (client, server, engine) = stage.connect();
                engines.push(engine);
                for (from, to) in [(client.clone(), server.clone()), (server, client)] {
                    let sending = scope.spawn(|| {
                        let from = from;
                        send_until(&from, &ends)
                    });
                    let counting = scope.spawn(move || count_messages(&to));
                    threads.push((sending, counting));
                }
                thread::sleep(Duration::from_millis(250));
            }
            let begun = Instant::now();
            let cut = stage.cut();
            thread::sleep(OUTAGE);
            cut.restore();
            let outage = begun.elapsed();
            thread::sleep(2 * OUTAGE);
            ends.store(true, Ordering::SeqCst);
            let results: Vec<_> = threads
                .into_iter()
                .map(|(sending, counting)| (sending.join().unwrap(), counting.join().unwrap()))
                .collect();
            (outage, results)
        })
    });
    for (sent, received) in results {
        assert_eq!(sent.unwrap(), received.unwrap());
    }
}

/// The connections use two configurations that differ only in [`Config::survive`].
#[test]
fn connection_survives_the_configured_outage() {
    const OUTAGE: Duration = Duration::from_secs(3);
    let impatient = Config::default().with(|c| {
        c.keepalive_interval = Some(Duration::from_millis(500));
        c.keepalive_timeout = Duration::from_millis(1500);
        c.close_timeout = Duration::from_millis(300);
        c.rdma.ack_timeout = Some(14);
    });
    let stages = [impatient.clone(), impatient.survive(OUTAGE)].map(Stage::with);
    let pairs = stages
        .each_ref()
        .map(|stage| [stage.connect(), stage.connect()]);
    let cuts = stages.each_ref().map(Stage::cut);
    // Send only on the second connection of each configuration. The first one is idle during the
    // outage.
    let [ended, surviving] = &pairs;
    for endpoint in [&ended[1].0, &ended[1].1] {
        // On a busy machine, this connection may have ended already.
        let _ = endpoint.send(b"in the outage");
    }
    for endpoint in [&surviving[1].0, &surviving[1].1] {
        endpoint.send(b"in the outage").unwrap();
    }
    thread::sleep(OUTAGE);
    for (client, server, _engine) in ended {
        let reasons = [end(client), end(server)];
        // No packet of the peer arrives during the outage. The kernel itself disconnects if bytes
        // stay unacknowledged for about 1 s (TCP_USER_TIMEOUT).
        let is_silence = |reason: &CloseReason| {
            matches!(
                reason,
                CloseReason::KeepaliveTimeout | CloseReason::PeerDisconnected
            )
        };
        assert!(reasons.iter().all(is_silence), "{reasons:?}");
    }
    for cut in cuts {
        cut.restore();
    }
    let [idle, busy] = surviving;
    for endpoint in [&busy.0, &busy.1] {
        assert_eq!(
            *endpoint.recv_timeout(TIME_LIMIT).unwrap(),
            *b"in the outage"
        );
    }
    for (client, server, _engine) in [idle, busy] {
        exchange(client, server).unwrap();
        client.close().unwrap();
    }
}

/// The close starts during the outage. The peer replies after the outage, to the retransmission
/// after 3.0 s. The close waits 5 s for this reply.
#[test]
fn close_survives_the_configured_outage() {
    const OUTAGE: Duration = Duration::from_secs(2);
    let impatient = Config::default().with(|c| c.close_timeout = Duration::from_millis(300));
    let closed = shorter_than(Duration::from_secs(4), || {
        let configs = [impatient.clone(), impatient.clone().survive(OUTAGE)];
        let stages = configs.map(Stage::with);
        let pairs = stages.each_ref().map(Stage::connect);
        let begun = Instant::now();
        let cuts = stages.each_ref().map(Stage::cut);
        let [lost, closed] = pairs.map(|(client, server, engine)| {
            client.send(b"the last").unwrap();
            thread::spawn(move || {
                let result = client.close();
                drop((server, engine));
                result
            })
        });
        thread::sleep(OUTAGE);
        let error = lost.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Undelivered(_)), "{error}");
        for cut in cuts {
            cut.restore();
        }
        let closed = closed.join().unwrap();
        (begun.elapsed(), closed)
    });
    closed.unwrap();
}

fn end(endpoint: &Endpoint) -> CloseReason {
    loop {
        if let Completion::Disconnected(reason) =
            endpoint.next_completion_timeout(TIME_LIMIT).unwrap()
        {
            return reason;
        }
    }
}

/// Returns a Failure frame with the code `code` and the sequence number `number`.
fn failure(number: u8, code: u8) -> [u8; 16] {
    [8, 0, 0, number, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, code]
}

/// Simulates a stopped process: the peer sends no replies, but its kernel still accepts bytes, such
/// as the Failure frame.
#[test]
fn silent_peer_receives_reason_in_failure_frame() {
    let config = Config::default().with(|c| {
        c.transport = TransportChoice::Tcp;
        c.receive_window = Some(4);
        c.keepalive_interval = Some(Duration::from_millis(100));
        c.keepalive_timeout = Duration::from_millis(300);
    });
    let stage = RawStage::with(config);
    let (mut peer, endpoint) = stage.connect();
    assert_eq!(end(&endpoint), CloseReason::KeepaliveTimeout);
    let mut bytes = Vec::new();
    peer.stream.read_to_end(&mut bytes).unwrap();
    // The Failure frame has the sequence number 1, because it follows the Ping, which has the
    // number 0.
    let notice = failure(1, 4);
    assert_eq!(bytes[bytes.len() - notice.len()..], notice, "{bytes:?}");
    stage.assert_unaffected();
}

#[test]
fn failure_frame_reports_which_timeout_expired() {
    let config = Config::default().with(|c| {
        c.transport = TransportChoice::Tcp;
        c.receive_window = Some(4);
    });
    let stage = RawStage::with(config);
    for (code, timeout, field) in [
        (4, PeerTimeout::Keepalive, "keepalive_timeout"),
        (5, PeerTimeout::Read, "read_timeout"),
    ] {
        let (mut peer, endpoint) = stage.connect();
        peer.send(&pdu(1, 0, &failure(0, code)));
        let reason = end(&endpoint);
        assert_eq!(reason, CloseReason::PeerGaveUp(timeout));
        let text = reason.to_string();
        assert!(text.contains(field) && text.contains("MTU"), "{text}");
    }
}
