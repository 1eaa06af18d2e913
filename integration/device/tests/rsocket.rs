//! `rdmsg::rsocket`: streams of this process with each other. How they speak to C programs is tested with these.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use device::{Lab, PATIENCE, Watchdog};
use rdmsg::{
    Endpoint,
    cm::{CmId, ConnParam, EventChannel, PortSpace, PrivateData},
    rsocket::{Config, Listener, Stream},
    status::CmEventType,
    verbs::{
        AccessFlags, CompletionQueue, Inline, MemoryRegion, ProtectionDomain, QpCap, QpInitAttr,
        QpState, QpType, QueuePair, RecvWr, RemoteAddr, SendWr, WorkCompletion,
    },
};

/// Two ends of a connection.
fn pair(config: &Config) -> (Stream, Stream) {
    let listener = Listener::bind_with(Lab::get().at(0), config).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap());
    let client = Stream::connect_with(address, config).unwrap();
    let (server, peer) = accepting.join().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(client.peer_addr().unwrap(), address);
    (client, server)
}

fn small() -> Config {
    let mut config = Config::default();
    config.send_buffer = 3000;
    config.receive_buffer = 2000;
    config.receive_queue = 4;
    config.send_queue = 3;
    config
}

/// Byte number `at` of a stream.
fn byte(at: usize) -> u8 {
    ((at * 31) >> 3) as u8
}

fn write_all(mut stream: &Stream, len: usize, piece: usize) {
    let bytes: Vec<u8> = (0..len).map(byte).collect();
    for piece in bytes.chunks(piece) {
        stream.write_all(piece).unwrap();
    }
}

fn read_all(mut stream: &Stream, len: usize, piece: usize) {
    let mut buffer = vec![0; piece];
    let mut at = 0;
    while at < len {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the end after {at} of {len} bytes");
        for (offset, got) in buffer[..count].iter().enumerate() {
            assert_eq!(*got, byte(at + offset), "byte {}", at + offset);
        }
        at += count;
    }
}

/// Each side reads with one thread and writes with another, much more than fits anywhere.
#[test]
fn both_directions_at_once() {
    let _watchdog = Watchdog::new("both_directions_at_once", 120);
    for (config, len) in [(Config::default(), 8 << 20), (small(), 300_000)] {
        let (client, server) = pair(&config);
        thread::scope(|scope| {
            for stream in [&client, &server] {
                scope.spawn(move || write_all(stream, len, 70_001));
                scope.spawn(move || read_all(stream, len, 9_999));
            }
        });
    }
}

/// A hundred in a row, each of which needs windows that the peer tells of as soon as there is a connection.
#[test]
fn no_connection_misses_a_window() {
    const ROUNDS: u32 = 100;
    let _watchdog = Watchdog::new("no_connection_misses_a_window", 120);
    let listener = Listener::bind_with(Lab::get().at(0), &small()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                read_all(&listener.accept().unwrap().0, 4000, 500);
            }
        });
        for _ in 0..ROUNDS {
            let client = Stream::connect_with(address, &small()).unwrap();
            write_all(&client, 4000, 500);
        }
    });
}

#[test]
fn small_pieces_arrive_in_order() {
    let _watchdog = Watchdog::new("small_pieces_arrive_in_order", 120);
    for config in [Config::default(), small()] {
        let (client, server) = pair(&config);
        thread::scope(|scope| {
            scope.spawn(|| write_all(&client, 20_000, 7));
            scope.spawn(|| read_all(&server, 20_000, 3));
        });
    }
}

/// What was written before is read to the end, then comes the end; the other direction goes on.
#[test]
fn one_direction_ends_before_the_other() {
    let _watchdog = Watchdog::new("one_direction_ends_before_the_other", 60);
    let (mut client, mut server) = pair(&Config::default());
    client.write_all(b"a question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let error = client.write(b"more").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    let mut question = String::new();
    server.read_to_string(&mut question).unwrap();
    assert_eq!(question, "a question");
    server.write_all(b"an answer").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "an answer");
}

#[test]
fn a_dropped_stream_delivers_first() {
    let _watchdog = Watchdog::new("a_dropped_stream_delivers_first", 60);
    let mut config = Config::default();
    config.receive_buffer = 1 << 20;
    config.send_buffer = 1 << 20;
    let (client, mut server) = pair(&config);
    write_all(&client, 400_000, 400_000);
    drop(client);
    read_all(&server, 400_000, 10_000);
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
    let error = server.write(b"nobody is there").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn waiting_is_bounded_where_it_should_be() {
    let _watchdog = Watchdog::new("waiting_is_bounded_where_it_should_be", 60);
    let mut config = small();
    config.receive_queue = 384;
    let (mut client, mut server) = pair(&config);
    let mut buffer = [0; 100];
    client.set_read_timeout(Some(Duration::from_millis(20)));
    let error = client.read(&mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    client.set_nonblocking(true);
    let error = client.read(&mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // Until the peer's memory is full.
    let error = loop {
        if let Err(error) = client.write(&[7; 100]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let error = client.wait_writable(Some(Duration::from_millis(20)));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    server.wait_readable(None).unwrap();
    let mut got = 0;
    server.set_read_timeout(Some(Duration::from_millis(500)));
    while let Ok(count) = server.read(&mut buffer) {
        assert!(buffer[..count].iter().all(|byte| *byte == 7));
        got += count;
    }
    // At least one window, and at most all memory that there is.
    assert!((1000..=2000 + 3000).contains(&got), "{got}");
    client.wait_writable(Some(Duration::from_secs(20))).unwrap();
    client.set_nonblocking(false);
    client.write_all(b"on").unwrap();
    server.read_exact(&mut buffer[..2]).unwrap();
    assert_eq!(&buffer[..2], b"on");
}

/// A thread that reads learns that another one has ended that.
#[test]
fn a_shutdown_wakes_who_reads() {
    let _watchdog = Watchdog::new("a_shutdown_wakes_who_reads", 60);
    for how in [Shutdown::Read, Shutdown::Both] {
        let (client, _server) = pair(&Config::default());
        let client = Arc::new(client);
        let reader = Arc::clone(&client);
        let reading = thread::spawn(move || (&*reader).read(&mut [0; 8]).unwrap());
        client.shutdown(how).unwrap();
        assert_eq!(reading.join().unwrap(), 0);
    }
}

/// One thread sleeps in the kernel, others behind it, and another one calls all the time: all learn of the end.
#[test]
fn a_peers_end_wakes_all_who_wait() {
    let _watchdog = Watchdog::new("a_peers_end_wakes_all_who_wait", 60);
    for _ in 0..20 {
        let (client, server) = pair(&small());
        client
            .set_keepalive(Some(Duration::from_micros(50)))
            .unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!((&client).read(&mut [0; 8]).unwrap(), 0));
            }
            drop(server);
        });
    }
}

#[test]
fn keepalive_goes_on_without_calls() {
    let _watchdog = Watchdog::new("keepalive_goes_on_without_calls", 60);
    let (client, mut server) = pair(&Config::default());
    client
        .set_keepalive(Some(Duration::from_millis(1)))
        .unwrap();
    // Many more than there is room for at once.
    server.set_read_timeout(Some(Duration::from_millis(200)));
    let error = server.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    client.set_keepalive(None).unwrap();
    write_all(&client, 1000, 10);
    read_all(&server, 1000, 1000);
}

/// One that is no rsocket is rejected, and the listener goes on.
#[test]
fn others_are_turned_away() {
    let _watchdog = Watchdog::new("others_are_turned_away", 60);
    let listener = Listener::bind(Lab::get().at(0)).unwrap();
    let address = listener.local_addr().unwrap();
    assert!(
        listener
            .accept_timeout(Duration::from_millis(1))
            .unwrap()
            .is_none()
    );
    let accepting = thread::spawn(move || listener.accept().unwrap().0);
    assert!(Endpoint::connect(address).is_err());
    let client = Stream::connect(address).unwrap();
    let server = accepting.join().unwrap();
    write_all(&client, 100, 100);
    read_all(&server, 100, 100);
    let error = Stream::connect(Lab::get().at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_hundred_connections_leave_nothing() {
    let _watchdog = Watchdog::new("a_hundred_connections_leave_nothing", 120);
    let once = || {
        let (client, server) = pair(&Config::default());
        write_all(&client, 1000, 100);
        read_all(&server, 1000, 100);
    };
    once();
    let before = Lab::get().resources();
    for _ in 0..100 {
        once();
    }
    assert_eq!(Lab::get().resources(), before);
}

/// A peer made by hand, that says in the protocol's words what it likes.
struct Peer {
    id: CmId,
    qp: QueuePair,
    _memory: MemoryRegion,
    window: RemoteAddr,
}

impl Peer {
    /// Connects with this version of the protocol.
    fn connect(address: SocketAddr, version: u8) -> Result<Self, CmEventType> {
        let mut peer = Self::answered(address, version)?;
        peer.id.establish().unwrap();
        Ok(peer)
    }

    /// As `connect`, but the other side has not heard yet that the answer came.
    fn answered(address: SocketAddr, version: u8) -> Result<Self, CmEventType> {
        let channel = EventChannel::new().unwrap();
        let step = || channel.wait_event(PATIENCE).unwrap().unwrap();
        let mut id = CmId::new(&channel, PortSpace::TCP, 0).unwrap();
        id.resolve_addr(None, address, PATIENCE).unwrap();
        step();
        id.resolve_route(PATIENCE).unwrap();
        step();
        let device = id.verbs().unwrap();
        let pd = ProtectionDomain::new(&device).unwrap();
        let cq = CompletionQueue::new(&device, 64, None).unwrap();
        let attr = QpInitAttr {
            qp_type: QpType::RC,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            cap: QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_inline_data: 16,
                ..QpCap::default()
            },
            sq_sig_all: true,
        };
        // Not the id's: librdmacm would say so by itself.
        let qp = QueuePair::new(&pd, &attr).unwrap();
        let move_to = |id: &mut CmId, state| qp.modify(&id.init_qp_attr(state).unwrap()).unwrap();
        move_to(&mut id, QpState::INIT);
        for number in 0..16 {
            qp.post_recv(&[RecvWr::new(number, &[])]).unwrap();
        }
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let memory = MemoryRegion::new(&pd, 4096, access).unwrap();
        let mut hello = vec![version, 2, 0, 16, 0, 0, 0, 0];
        for (offset, length) in [(0, 2_u32), (1024, 1024)] {
            hello.extend((memory.addr() + offset).to_be_bytes());
            hello.extend(memory.rkey().to_be_bytes());
            hello.extend(length.to_be_bytes());
        }
        let param = ConnParam {
            private_data: PrivateData::try_from(&hello[..]).unwrap(),
            qp_num: qp.qp_num(),
            ..ConnParam::default()
        };
        id.connect(&param).unwrap();
        let event = step();
        if event.event() != CmEventType::CONNECT_RESPONSE {
            return Err(event.event());
        }
        // What the peer may do is known only now.
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            move_to(&mut id, state);
        }
        let data = event.private_data();
        let window = RemoteAddr {
            addr: u64::from_be_bytes(data[24..32].try_into().unwrap()),
            rkey: u32::from_be_bytes(data[32..36].try_into().unwrap()),
        };
        Ok(Self {
            id,
            qp,
            _memory: memory,
            window,
        })
    }

    /// What the other side says next, but for what this one may write.
    fn hear(&self) -> u32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut done = [WorkCompletion::default()];
            while self.qp.recv_cq().poll(&mut done).unwrap() == 0 {
                assert!(Instant::now() < deadline, "nothing is said");
            }
            let said = done[0].imm_data().unwrap();
            if said >> 29 != 4 {
                return said;
            }
        }
    }

    fn say(&self, bytes: &[u8], immediate: u32) {
        let wr = SendWr::write_with_imm(SAID, Inline(bytes), self.window, immediate);
        self.qp.post_send(&[wr]).unwrap();
        // It has arrived when it is done.
        let deadline = Instant::now() + PATIENCE;
        let mut done = [WorkCompletion::default()];
        while !done[0].is_success() || done[0].opcode().is_recv() || done[0].wr_id() != SAID {
            assert!(Instant::now() < deadline, "{done:?}");
            done = [WorkCompletion::default()];
            self.qp.send_cq().poll(&mut done).unwrap();
        }
    }
}

/// Which work request a completion of a peer made by hand is of.
const SAID: u64 = 100;

/// What an accepted stream is to say before the peer has said that it knows of the connection is not lost.
#[test]
fn an_end_before_the_beginning_is_said() {
    const DISCONNECT: u32 = 7 << 29;
    const SHUTDOWN: u32 = DISCONNECT | 2;
    let _watchdog = Watchdog::new("an_end_before_the_beginning_is_said", 60);
    let listener = Listener::bind(Lab::get().at(0)).unwrap();
    let address = listener.local_addr().unwrap();
    let answered = || {
        let connecting = thread::spawn(move || Peer::answered(address, 1).unwrap());
        let stream = listener.accept().unwrap().0;
        (connecting.join().unwrap(), stream)
    };

    let (mut peer, stream) = answered();
    stream.set_nonblocking(true);
    stream.shutdown(Shutdown::Write).unwrap();
    peer.id.establish().unwrap();
    // It is said with the next call.
    let error = stream.wait_readable(Some(Duration::from_millis(20)));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(peer.hear(), SHUTDOWN);

    let waits: [fn(Stream) -> Option<Stream>; 2] = [
        |stream| {
            drop(stream);
            None
        },
        |stream| {
            stream.shutdown(Shutdown::Both).unwrap();
            Some(stream)
        },
    ];
    for wait in waits {
        let (mut peer, stream) = answered();
        let waiting = thread::spawn(move || wait(stream));
        peer.id.establish().unwrap();
        assert_eq!(peer.hear(), DISCONNECT);
        drop(waiting.join().unwrap());
    }
}

/// What a peer says is held against what it may, and costs no other connection anything.
#[test]
fn peers_that_do_not_keep_to_the_protocol() {
    let _watchdog = Watchdog::new("peers_that_do_not_keep_to_the_protocol", 60);
    let mut config = Config::default();
    config.receive_buffer = 1000;
    config.receive_queue = 4;
    let listener = Listener::bind_with(Lab::get().at(0), &config).unwrap();
    let address = listener.local_addr().unwrap();
    // The other side's accept goes on by itself.
    let (sender, accepted) = std::sync::mpsc::channel();
    thread::spawn(move || while sender.send(listener.accept().unwrap().0).is_ok() {});

    let other_version = Peer::connect(address, 2);
    assert_eq!(other_version.err(), Some(CmEventType::REJECTED));
    // More bytes than there is room for, writes without a credit, an operation and a control message that nobody knows.
    for says in [
        &[("", 1001)][..],
        &[("1", 1), ("2", 1), ("3", 1), ("4", 1), ("5", 1)],
        &[("", 0xa000_0000)],
        &[("", 0xe000_0007)],
    ] {
        let peer = Peer::connect(address, 1).unwrap();
        let mut stream = accepted.recv_timeout(PATIENCE).unwrap();
        peer.say(b"fine", 4);
        let mut buffer = [0; 4];
        stream.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"fine");
        for (bytes, immediate) in says {
            peer.say(bytes.as_bytes(), *immediate);
        }
        let error = loop {
            // What came before is there.
            match stream.read(&mut buffer) {
                Ok(count) => assert!(count > 0, "{says:?}: the end"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{says:?}");
        let text = error.to_string();
        let known = text.contains("more than it may") || text.contains("keep to the protocol");
        assert!(known, "{says:?}: {text}");
    }
    let client = Stream::connect(address).unwrap();
    let server = accepted.recv_timeout(PATIENCE).unwrap();
    write_all(&client, 100, 100);
    read_all(&server, 100, 100);
}
