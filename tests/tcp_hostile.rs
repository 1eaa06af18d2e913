//! Tests with peers over TCP that violate the protocol. A violation must end only the connection on
//! which it occurs.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    os::fd::AsRawFd,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{
    TIME_LIMIT, connector, tcp_config,
    tcp_peer::{Peer, Stage, frame, frame_with, pdu},
};
use log::{LevelFilter, Log, Metadata, Record};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use rdmsg::{
    CloseReason, Completion, Config, Endpoint, Error, Listener, Outgoing, Polling, RemoteAccess,
    RemoteRegion, TransportChoice,
};

/// Returns the arguments of a READ, an atomic operation or a write: a target in memory that is not
/// registered for remote access, followed by `more`.
fn unexposed_target(more: &[u8]) -> Vec<u8> {
    [&0x1000_u64.to_be_bytes()[..], &7_u32.to_be_bytes(), more].concat()
}

fn config() -> Config {
    let mut config = tcp_config();
    config.receive_window = Some(4);
    config.eager_size = Some(1000);
    config.max_message = 1 << 20;
    config
}

fn stage() -> Stage {
    Stage::with(config())
}

fn end_of(endpoint: &Endpoint) -> CloseReason {
    loop {
        let completion = endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
        if let Completion::Disconnected(reason) = completion {
            return reason;
        }
    }
}

#[test]
fn stream_violation_names_the_field() {
    let stage = stage();
    let no_reads: Vec<u8> = (0..17)
        .flat_map(|_| pdu(4, 0, &unexposed_target(&0_u32.to_be_bytes())))
        .collect();
    for (field, bytes) in [
        ("pdu kind", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("pdu kind", pdu(0, 0, b"")),
        ("pdu flags", pdu(1, 4, b"")),
        ("pdu reserved", vec![1, 0, 0, 1, 0, 0, 0, 0]),
        ("pdu length", pdu(16, 0, b"\0\0\0\0\0")),
        ("pdu length", vec![17, 2, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        ("nak cause", pdu(19, 0, &[0, 0, 0, 0, 0, 0, 0, 9])),
        ("ack", pdu(16, 0, &[0, 0, 0, 1])),
        ("ack", pdu(16, 0, &[0xff; 4])),
        ("nak", pdu(19, 0, &[0, 0, 0, 0, 0, 0, 0, 1])),
        ("read response", pdu(17, 2, b"x")),
        ("read response", pdu(17, 2, b"")),
        ("atomic response", pdu(18, 0, &[0; 8])),
        ("read requests", no_reads),
        ("sequence", pdu(1, 0, &frame(1, b"x"))),
    ] {
        let (mut peer, endpoint) = stage.connect();
        peer.send(&bytes);
        match end_of(&endpoint) {
            CloseReason::ProtocolViolation(violation) => {
                assert_eq!(violation.field(), field, "{bytes:?}");
            }
            other => panic!("{field}: {other:?}"),
        }
    }
    stage.assert_unaffected();
}

/// Returns a control message. `number` is its content and its sequence number.
fn control_message(number: u16) -> Vec<u8> {
    let mut bytes = frame(number, &number.to_be_bytes());
    bytes[0] = 10;
    bytes[12..16].copy_from_slice(&u32::from(number).to_be_bytes());
    bytes
}

#[test]
fn control_message_flood_ends_its_connection_alone() {
    let stage = stage();
    let (mut peer, endpoint) = stage.connect();
    // The peer's hello contains no features, so the endpoint cannot send control messages.
    let refused = endpoint.send_control(b"x").unwrap_err();
    assert!(matches!(refused, Error::NotSupported { .. }), "{refused}");
    for number in 0..3 {
        peer.send(&pdu(1, 0, &control_message(number)));
    }
    let mut held = Vec::new();
    let reason = loop {
        match endpoint.next_completion_timeout(TIME_LIMIT).unwrap() {
            Completion::Control(message) => held.push(message),
            Completion::Disconnected(reason) => break reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(held.len(), 2, "the credit must allow two messages");
    let CloseReason::ProtocolViolation(violation) = reason else {
        panic!("{reason:?}");
    };
    assert_eq!((violation.field(), violation.value()), ("kind", 10));
    stage.assert_unaffected();
}

#[test]
fn a_second_leave_is_named() {
    let stage = stage();
    let (mut peer, endpoint) = stage.connect();
    let refused = endpoint.ask_to_leave().unwrap_err();
    assert!(matches!(refused, Error::NotSupported { .. }), "{refused}");
    for number in 0..2 {
        let mut leave = frame(number, b"");
        leave[0] = 12;
        peer.send(&pdu(1, 0, &leave));
    }
    let completion = endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
    assert!(
        matches!(completion, Completion::PeerLeaving),
        "{completion:?}"
    );
    let CloseReason::ProtocolViolation(violation) = end_of(&endpoint) else {
        panic!("{endpoint:?}");
    };
    assert_eq!((violation.field(), violation.value()), ("kind", 12));
    stage.assert_unaffected();
}

#[test]
fn forged_grant_of_control_messages_is_named() {
    let stage = stage();
    for limit in [0_u32, 2, 3, 4, u32::MAX] {
        let (mut peer, endpoint) = stage.connect();
        let mut grant = frame(0, b"");
        grant[0] = 11;
        grant[12..16].copy_from_slice(&limit.to_be_bytes());
        peer.send(&pdu(1, 0, &grant));
        match end_of(&endpoint) {
            CloseReason::ProtocolViolation(violation) => {
                assert_eq!(violation.field(), "permit", "{limit}");
            }
            other => panic!("{limit}: {other:?}"),
        }
    }
    stage.assert_unaffected();
}

/// Reads PDUs until a PDU of the kind `expected` arrives. Returns the kinds of the PDUs before this
/// PDU, and the content of this PDU.
fn read_until(peer: &mut Peer, expected: u8) -> (Vec<u8>, Vec<u8>) {
    let mut before = Vec::new();
    loop {
        let mut prefix = [0; 8];
        peer.stream.read_exact(&mut prefix).unwrap();
        let [kind, _, _, _, length @ ..] = prefix;
        let mut rest = vec![0; u32::from_be_bytes(length) as usize];
        peer.stream.read_exact(&mut rest).unwrap();
        if kind == expected {
            return (before, rest);
        }
        before.push(kind);
    }
}

#[test]
fn answers_of_another_length_are_named_by_their_field() {
    let stage = stage();
    let large = 100_u64;
    for (field, answer) in [
        ("read response", pdu(17, 2, &[7; 99])),
        ("read response", pdu(17, 2, &[7; 101])),
        ("read response", pdu(17, 0, &[7; 100])),
        ("atomic response", pdu(18, 0, &[7; 8])),
    ] {
        let (mut peer, endpoint) = stage.connect();
        // The descriptor of the large message's memory: address, length and key.
        let descriptor = [
            &4096_u64.to_be_bytes()[..],
            &large.to_be_bytes(),
            &[9; 4],
            &[0; 4],
        ]
        .concat();
        let mut announcement = frame(0, &descriptor);
        announcement[0] = 16;
        peer.send(&pdu(1, 0, &announcement));
        let (_, asked) = read_until(&mut peer, 4);
        assert_eq!(asked[12..], (large as u32).to_be_bytes());
        peer.send(&answer);
        match end_of(&endpoint) {
            CloseReason::ProtocolViolation(violation) => assert_eq!(violation.field(), field),
            other => panic!("{field}: {other:?}"),
        }
    }
    stage.assert_unaffected();
}

#[test]
fn no_more_reads_are_in_flight_than_both_sides_serve() {
    let mut config = config();
    config.send_depth = Some(64);
    let stage = Stage::with(config);
    let addr = stage.listener.local_addr();
    for (reads, expected) in [(1, 1), (5, 5), (255, 16)] {
        let connecting = thread::spawn(move || Peer::serving(TcpStream::connect(addr)?, 4, reads));
        let endpoint = stage.listener.accept_timeout(TIME_LIMIT).unwrap();
        let mut peer = connecting.join().unwrap().unwrap();
        let region = endpoint.one_sided().region(8, RemoteAccess::NONE).unwrap();
        let token = [
            &0_u64.to_be_bytes()[..],
            &64_u64.to_be_bytes(),
            &[0, 0, 0, 1, 0, 0, 0, 1],
        ];
        let remote = RemoteRegion::try_from(&token.concat()[..]).unwrap();
        for id in 0..20 {
            endpoint
                .one_sided()
                .read(&region, 0..8, &remote, 0, id)
                .unwrap();
        }
        // The endpoint delays the READ requests that exceed the peer's limit. It acknowledges this
        // frame before it sends the delayed requests.
        peer.send(&pdu(1, 1, &frame(0, b"acknowledge this")));
        let (before, _) = read_until(&mut peer, 16);
        let asked = before.iter().filter(|kind| **kind == 4).count();
        assert_eq!(asked, expected, "the peer serves {reads} READs");
        drop(peer);
        end_of(&endpoint);
    }
    stage.assert_unaffected();
}

/// A logger that counts the lines about violations.
struct Violations(AtomicUsize);

static VIOLATIONS: Violations = Violations(AtomicUsize::new(0));

impl Log for Violations {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.args().to_string().contains("violated the protocol") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// Peers can cause a log line with each violation, so the library must limit the rate of these
/// lines.
#[test]
fn violations_log_at_most_one_line_per_second() {
    let start = Instant::now();
    log::set_logger(&VIOLATIONS).unwrap();
    log::set_max_level(LevelFilter::Warn);
    let stage = stage();
    let lines = || VIOLATIONS.0.load(Ordering::Relaxed);
    let mut violations = 0;
    // The library may have used this second's line for a violation before `set_logger`, so continue
    // until a line is logged.
    while violations < 200 || lines() == 0 {
        let (mut peer, endpoint) = stage.connect();
        peer.send(b"GET / HTTP/1.1\r\n\r\n");
        end_of(&endpoint);
        violations += 1;
        assert!(start.elapsed() < TIME_LIMIT, "no violation was logged");
    }
    // The library logs the first line, and then at most one line per second.
    let most = 1 + start.elapsed().as_secs() as usize;
    let lines = lines();
    assert!(lines <= most, "{lines} lines, {most} at most");
    stage.assert_unaffected();
}

#[test]
fn memory_without_grant_is_not_read_or_written() {
    let stage = stage();
    for bytes in [
        pdu(4, 0, &unexposed_target(&8_u32.to_be_bytes())),
        pdu(2, 2, &unexposed_target(b"written")),
        pdu(5, 0, &unexposed_target(&[0; 16])),
        pdu(6, 0, &unexposed_target(&[0; 16])),
    ] {
        let (mut peer, endpoint) = stage.connect();
        let region = endpoint.one_sided().region(64, RemoteAccess::ALL).unwrap();
        peer.send(&bytes);
        let mut answer = Vec::new();
        let _ = peer.stream.read_to_end(&mut answer);
        // The endpoint replies with a Nak for the first request, and then ends the stream.
        assert_eq!(answer, pdu(19, 0, &[0, 0, 0, 0, 0, 0, 0, 1]), "{bytes:?}");
        end_of(&endpoint);
        let mut content = [1; 64];
        region.copy_out(0, &mut content);
        assert_eq!(content, [0; 64]);
    }
    stage.assert_unaffected();
}

/// The parts of a write with immediate data must be contiguous. If they were not contiguous, the
/// length that the library reports to the program would be wrong.
#[test]
fn noncontiguous_write_parts_end_the_connection() {
    let stage = stage();
    type Second = fn(&dyn Fn(u64, &[u8]) -> Vec<u8>) -> Vec<u8>;
    let seconds: [Second; 5] = [
        |part| pdu(3, 2, &part(0, b"\0\0\0\x07same")),
        |part| pdu(2, 2, &part(24, b"left out")),
        |part| pdu(4, 0, &part(16, &8_u32.to_be_bytes())),
        |_| pdu(2, 2, &unexposed_target(b"elsewhere")),
        |_| pdu(1, 0, &frame(0, b"a frame")),
    ];
    for second in seconds {
        let (mut peer, endpoint) = stage.connect();
        let region = endpoint.one_sided().region(64, RemoteAccess::ALL).unwrap();
        // The descriptor of a region contains the address, the length and the key.
        let remote = region.remote().to_bytes();
        let start = u64::from_be_bytes(remote[..8].try_into().unwrap());
        let part = |at: u64, more: &[u8]| {
            [&(start + at).to_be_bytes()[..], &remote[16..20], more].concat()
        };
        peer.send(&pdu(2, 0, &part(0, &[1; 16])));
        peer.send(&second(&part));
        match end_of(&endpoint) {
            CloseReason::ProtocolViolation(violation) => {
                assert_eq!(violation.field(), "write part");
            }
            other => panic!("{other:?}"),
        }
    }
    stage.assert_unaffected();
}

#[test]
fn frame_too_long_or_without_receive_ends_connection() {
    let stage = stage();
    let (mut peer, endpoint) = stage.connect();
    peer.send(&pdu(1, 0, &frame(0, &[7; 2000])));
    let reason = end_of(&endpoint);
    assert!(
        matches!(reason, CloseReason::WorkRequest { .. }),
        "{reason:?}"
    );

    let (mut peer, endpoint) = stage.connect();
    for number in 0..100 {
        peer.send(&pdu(1, 0, &frame(number, b"flood")));
    }
    let reason = end_of(&endpoint);
    let ended = matches!(
        reason,
        CloseReason::ProtocolViolation(_) | CloseReason::PeerDisconnected
    );
    assert!(ended, "{reason:?}");
    stage.assert_unaffected();
}

#[test]
fn death_inside_pdu_counts_as_disconnect() {
    let stage = stage();
    let whole = pdu(1, 0, &frame(0, b"never whole"));
    for len in 1..whole.len() {
        let (mut peer, endpoint) = stage.connect();
        peer.send(&whole[..len]);
        drop(peer);
        let reason = end_of(&endpoint);
        assert!(
            matches!(reason, CloseReason::PeerDisconnected),
            "{len}: {reason:?}"
        );
    }
    stage.assert_unaffected();
}

#[test]
fn death_inside_frame_leaks_no_shared_receive() {
    let mut config = config();
    config.shared_receive = Some(100);
    let stage = Stage::with(config);
    let whole = pdu(1, 0, &frame(0, b"never whole"));
    for _ in 0..120 {
        let (mut peer, endpoint) = stage.connect();
        peer.send(&whole[..whole.len() - 3]);
        drop(peer);
        end_of(&endpoint);
    }
    for _ in 0..20 {
        stage.assert_unaffected();
    }
}

#[test]
fn messages_arrive_if_sent_byte_by_byte() {
    let stage = stage();
    let (mut peer, endpoint) = stage.connect();
    let bytes = [pdu(1, 1, &frame(0, b"one")), pdu(1, 0, &frame(1, b"two"))].concat();
    for byte in bytes {
        peer.send(&[byte]);
        peer.stream.flush().unwrap();
    }
    assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"one");
    assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"two");
}

#[test]
fn bytes_beyond_one_batch_are_still_processed() {
    let mut config = Config::default();
    config.transport = TransportChoice::Tcp;
    // The stage disables keepalive, so only the arriving bytes make a thread poll.
    config.polling = Polling::Event;
    config.receive_window = Some(64);
    config.eager_size = Some(1000);
    let stage = Stage::with(config);
    for before in 0..24 {
        let (mut peer, endpoint) = stage.connect_with(64);
        for id in 0..12 {
            endpoint
                .send(Outgoing::from(b"acknowledged in one").with_id(id))
                .unwrap();
        }
        let message = |number| pdu(1, 0, &frame_with(64, number, &[number as u8]));
        let mut bytes: Vec<u8> = (0..before).flat_map(message).collect();
        bytes.extend(pdu(16, 0, &12_u32.to_be_bytes()));
        bytes.extend((before..before + 20).flat_map(message));
        // The peer sends nothing after these bytes, so no later event makes the endpoint read them.
        peer.send(&bytes);
        for number in 0..before + 20 {
            let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
            assert_eq!(*message, [number as u8], "{before} before");
        }
        drop(peer);
    }
}

#[test]
fn bytes_before_peer_close_arrive_before_the_end() {
    const COUNT: u16 = 512;
    let mut config = Config::default();
    config.transport = TransportChoice::Tcp;
    config.receive_window = Some(COUNT);
    config.eager_size = Some(64 << 10);
    let stage = Stage::with(config);
    for len in [1, 3000, 60_000] {
        let (mut peer, endpoint) = stage.connect();
        for number in 0..COUNT {
            peer.send(&pdu(1, 0, &frame(number, &vec![number as u8; len])));
        }
        // Shut down the stream instead of closing it. The socket contains unread grants, so a close
        // would discard the unsent bytes.
        peer.stream.shutdown(Shutdown::Write).unwrap();
        for number in 0..COUNT {
            let message = endpoint.recv_timeout(TIME_LIMIT);
            let message = message.unwrap_or_else(|error| panic!("{number} of {len}: {error}"));
            assert!(*message == vec![number as u8; len][..], "{number} of {len}");
        }
        assert!(matches!(end_of(&endpoint), CloseReason::PeerDisconnected));
    }
}

#[test]
fn noise_after_setup_ends_only_its_own_connection() {
    let stage = stage();
    let mut random = Random(0x5eed);
    for _ in 0..200 {
        let (mut peer, endpoint) = stage.connect();
        let mut bytes = Vec::new();
        for number in 0..1 + random.below(6) {
            let payload = vec![3; random.below(40)];
            let mut next = match random.below(6) {
                0 => pdu(1, 1, &frame(number as u16, &payload)),
                1 => pdu(2, random.below(4) as u8, &unexposed_target(&payload)),
                2 => pdu(
                    4,
                    0,
                    &unexposed_target(&(payload.len() as u32).to_be_bytes()),
                ),
                3 => pdu(16, 0, &(random.below(3) as u32).to_be_bytes()),
                4 => pdu(17, random.below(4) as u8, &payload),
                _ => payload,
            };
            if random.below(3) == 0 && !next.is_empty() {
                let at = random.below(next.len());
                next[at] = random.next() as u8;
            }
            bytes.extend(next);
        }
        peer.send(&bytes);
        drop(peer);
        end_of(&endpoint);
    }
    stage.assert_unaffected();
}

/// A peer floods its connection with pings while other connections exchange messages.
#[test]
fn ping_flood_over_tcp_delays_no_other_connection() {
    const PING: u8 = 3;
    let stage = stage();
    let (peer, endpoint) = stage.connect();
    let (mut flood, mut answers) = (peer.stream.try_clone().unwrap(), peer.stream);
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = Vec::new();
            for number in 0..=u16::MAX {
                let mut ping = frame(number, b"");
                ping[0] = PING;
                batch.extend(pdu(1, 0, &ping));
            }
            // A batch contains each 16-bit sequence number once, so the numbers continue from batch
            // to batch.
            while flood.write_all(&batch).is_ok() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(move || io::copy(&mut answers, &mut io::sink()));
        // Wait until the sequence numbers of the pings have wrapped around.
        while sent.load(Ordering::Relaxed) < 2 {
            assert_eq!(endpoint.info().close_reason, None);
            stage.assert_unaffected();
        }
        for _ in 0..100 {
            stage.assert_unaffected();
        }
        endpoint.abort(0);
        end_of(&endpoint);
    });
}

/// Pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn connect_from(host: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let family = AddressFamily::Inet;
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let from = SocketAddr::from((host, 0));
    bind(fd.as_raw_fd(), &SockaddrStorage::from(from)).unwrap();
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
    fd.into()
}

/// If a peer announces private data and sends only a part of them, its connection counts as half
/// open until the listener's `connect_timeout` expires. The program never receives the peer's
/// request.
#[test]
fn incomplete_private_data_time_out() {
    let stage = stage();
    let mut config = config();
    config.connect_timeout = Duration::from_secs(10);
    config.keepalive_interval = None;
    let listener = Listener::builder()
        .config(&config)
        .half_open(3)
        .bind_requests("127.0.0.1:0")
        .unwrap();
    let addr = listener.local_addr();
    let mut hello = Peer::hello(4);
    hello[6] = 1;
    let connect = || Peer::with_hello(TcpStream::connect(addr).unwrap(), &hello, 16).unwrap();
    let mut request = frame(0, &[7; 100]);
    request[0] = 13;
    let part = pdu(1, 0, &request);
    let mut peers: Vec<_> = [0, 7, 60]
        .map(|len| {
            let mut peer = connect();
            peer.send(&part[..len]);
            peer
        })
        .into();
    let refused = TcpStream::connect(addr).unwrap();
    let mut answer = [0; 8];
    let mut refused = Peer::introduce(refused, &hello, 16).unwrap();
    refused.stream.read_exact(&mut answer).unwrap();
    assert_eq!(
        answer[..6],
        *b"rdmt\x01\x03",
        "the reply must be a rejection"
    );
    for peer in &mut peers {
        let mut rest = Vec::new();
        peer.stream.read_to_end(&mut rest).unwrap();
        let failure = [8, 0, 0, 0].as_slice();
        assert!(
            rest.windows(4).any(|bytes| bytes == failure),
            "the peer must get a Failure frame: {rest:?}"
        );
    }
    assert!(listener.requests().is_empty());
    let mut peer = connect();
    peer.send(&part);
    let shown = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    assert_eq!(shown.private_data(), [7; 100]);
    stage.assert_unaffected();
}

/// Long requests that arrive simultaneously must not exceed the backlog.
#[test]
fn backlog_bounds_requests_with_long_private_data() {
    const PEERS: usize = 6;
    let stage = stage();
    let mut hello = Peer::hello(4);
    hello[6] = 1;
    let mut request = frame(0, &[7; 100]);
    request[0] = 13;
    let request = pdu(1, 0, &request);
    // Connects peers that send long requests. Returns the peers, and the number of rejected peers.
    // If `answers` is false, the first peer gets no reply and is skipped.
    let count_rejections = |addr: SocketAddr, answers: bool| {
        let connect = || Peer::with_hello(TcpStream::connect(addr).unwrap(), &hello, 16).unwrap();
        let mut peers: Vec<_> = (0..PEERS).map(|_| connect()).collect();
        peers.iter_mut().for_each(|peer| peer.send(&request));
        let failure = [8, 0, 0, 0].as_slice();
        let rejected = peers
            .iter_mut()
            .skip(if answers { 0 } else { 1 })
            .filter_map(|peer| {
                let mut bytes = [0; 24];
                peer.stream.read_exact(&mut bytes).unwrap();
                bytes.windows(4).any(|it| it == failure).then_some(())
            })
            .count();
        (peers, rejected)
    };
    let builder = Listener::builder().config(&config()).backlog(1);
    let listener = builder.clone().bind("127.0.0.1:0").unwrap();
    let (_peers, rejected) = count_rejections(listener.local_addr(), true);
    assert_eq!(rejected, PEERS - 1);
    assert!(listener.accept_timeout(TIME_LIMIT).is_ok());

    let requests = builder.bind_requests("127.0.0.1:0").unwrap();
    let (_peers, rejected) = count_rejections(requests.local_addr(), false);
    assert_eq!(rejected, PEERS - 1);
    assert_eq!(requests.requests().len(), 1);
    stage.assert_unaffected();
}

/// An engine permits at most 256 connections on which no hello has arrived.
#[test]
fn silent_peers_use_no_places_of_other_addresses() {
    const SILENT: usize = 300;
    let stage = stage();
    let addr = stage.listener.local_addr();
    let slow = connect_from([127, 0, 0, 2].into(), addr);
    let mut silent: Vec<_> = (0..SILENT)
        .map(|_| TcpStream::connect(addr).unwrap())
        .collect();
    // The library keeps 256 of the `SILENT + 1` connections. The slow peer is the only peer with
    // its address, so its connection is kept. The library has closed the oldest silent connections.
    for evicted in &mut silent[..SILENT + 1 - 256] {
        evicted.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        assert_eq!(evicted.read(&mut [0]).unwrap(), 0);
    }
    let _peer = Peer::from_stream(slow, 4).unwrap();
    stage.listener.accept_timeout(TIME_LIMIT).unwrap();
    stage.assert_unaffected();
}

#[test]
fn forged_key_ends_the_connection() {
    let listener = Listener::builder()
        .config(&config())
        .bind("127.0.0.1:0")
        .unwrap();
    let addr = listener.local_addr();
    let server = thread::spawn(move || listener.accept().unwrap());
    let client = connector().connect(addr).unwrap();
    let server = server.join().unwrap();
    let region = server.one_sided().region(4096, RemoteAccess::ALL).unwrap();
    let mut bytes = region.remote().to_bytes();
    bytes[19] ^= 1;
    let forged = RemoteRegion::from_bytes(&bytes);
    let local = client.one_sided().region(64, RemoteAccess::NONE).unwrap();
    client
        .one_sided()
        .read(&local, 0..64, &forged, 0, 1)
        .unwrap();
    let reason = loop {
        if let Completion::Disconnected(reason) = client.next_completion().unwrap() {
            break reason;
        }
    };
    assert!(
        matches!(reason, CloseReason::WorkRequest { .. }),
        "{reason:?}"
    );
    assert!(matches!(server.recv(), Err(Error::Disconnected(_))));
}
