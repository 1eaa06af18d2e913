//! Tests streams with a peer that calls verbs directly, because the peer must send operations that
//! a stream never sends.

use std::{
    io::{ErrorKind, Read},
    net::{Shutdown, SocketAddr},
    thread,
    time::Instant,
};

use rdmsg::{
    cm::{CmId, ConnParam, EventChannel, PortSpace, PrivateData},
    rsocket::{Config, Listener, Stream},
    status::CmEventType,
    verbs::{
        AccessFlags, CompletionQueue, Inline, MemoryRegion, ProtectionDomain, QpCap, QpInitAttr,
        QpState, QueuePair, RecvWr, RemoteAddr, SendWr, WorkCompletion,
    },
};
use toolbox::{DeviceTest, TIME_LIMIT, applies, read_sequence, write_sequence};

use crate::patient;

/// The device capability that a [`Peer`] needs. iWARP lacks it.
const BY_HAND: &str = "queue pairs that a program connects by ibv_modify_qp(3)";

/// A peer that can send any operation of the protocol, including invalid ones.
struct Peer {
    id: CmId,
    qp: QueuePair,
    _memory: MemoryRegion,
    window: RemoteAddr,
}

impl Peer {
    /// Connects, and offers version `version` of the protocol.
    fn connect(address: SocketAddr, version: u8) -> Result<Self, CmEventType> {
        let mut peer = Self::half_connect(address, version)?;
        peer.id.establish().unwrap();
        Ok(peer)
    }

    /// Connects, but omits the final step of the setup. The stream therefore gets no confirmation
    /// that its acceptance has arrived.
    fn half_connect(address: SocketAddr, version: u8) -> Result<Self, CmEventType> {
        let channel = EventChannel::new().unwrap();
        let step = || channel.wait_event(TIME_LIMIT).unwrap().unwrap();
        let mut id = CmId::new(&channel, PortSpace::TCP, 0).unwrap();
        id.resolve_addr(None, address, TIME_LIMIT).unwrap();
        step();
        id.resolve_route(TIME_LIMIT).unwrap();
        step();
        let device = id.verbs().unwrap();
        let pd = ProtectionDomain::new(&device).unwrap();
        let cq = CompletionQueue::new(&device, 64, None).unwrap();
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_inline_data: 16,
            ..QpCap::default()
        };
        let attr = QpInitAttr {
            sq_sig_all: true,
            ..QpInitAttr::rc(&cq, cap)
        };
        // Create the queue pair separately from the id. If the id had a queue pair, librdmacm would
        // perform the final step of the setup.
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
        // librdmacm derives the attributes for these state changes from the received acceptance.
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

    /// Waits for the next immediate value from the stream, and returns it. Skips values that grant
    /// credit.
    fn receive(&self) -> u32 {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            let mut done = [WorkCompletion::default()];
            while self.qp.recv_cq().poll(&mut done).unwrap() == 0 {
                assert!(
                    Instant::now() < deadline,
                    "no immediate value arrived in time"
                );
            }
            let immediate = done[0].imm_data().unwrap();
            if immediate >> 29 != 4 {
                return immediate;
            }
        }
    }

    fn say(&self, bytes: &[u8], immediate: u32) {
        let wr = SendWr::write_with_imm(WRITE_ID, Inline(bytes), self.window, immediate);
        self.qp.post_send(&[wr]).unwrap();
        // Wait for the completion, which shows that the WRITE has arrived.
        let deadline = Instant::now() + TIME_LIMIT;
        let mut done = [WorkCompletion::default()];
        while !done[0].is_success() || done[0].opcode().is_recv() || done[0].wr_id() != WRITE_ID {
            assert!(Instant::now() < deadline, "{done:?}");
            done = [WorkCompletion::default()];
            self.qp.send_cq().poll(&mut done).unwrap();
        }
    }
}

/// The work request id of all writes of a [`Peer`].
const WRITE_ID: u64 = 100;

/// The program shuts down an accepted stream before the peer has completed the connect. The stream
/// must send the shutdown later, after the peer has completed the connect.
#[test]
fn end_before_establishment_is_reported() {
    const DISCONNECT: u32 = 7 << 29;
    const SHUTDOWN: u32 = DISCONNECT | 2;
    let lab = DeviceTest::start();
    if !applies(!lab.is_iwarp(), BY_HAND) {
        return;
    }
    let listener = Listener::bind(lab.at(0)).unwrap();
    let address = listener.local_addr().unwrap();
    let half_connected = || {
        let connecting = thread::spawn(move || Peer::half_connect(address, 1).unwrap());
        let stream = listener.accept().unwrap().0;
        (connecting.join().unwrap(), stream)
    };

    let (mut peer, stream) = half_connected();
    stream.set_nonblocking(true);
    stream.shutdown(Shutdown::Write).unwrap();
    peer.id.establish().unwrap();
    // The next call on the stream sends the shutdown.
    thread::scope(|scope| {
        let calling = scope.spawn(|| stream.wait_readable(Some(TIME_LIMIT)));
        assert_eq!(peer.receive(), SHUTDOWN);
        peer.say(b"!", 1);
        calling.join().unwrap().unwrap();
    });

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
        let (mut peer, stream) = half_connected();
        let waiting = thread::spawn(move || wait(stream));
        peer.id.establish().unwrap();
        assert_eq!(peer.receive(), DISCONNECT);
        drop(waiting.join().unwrap());
    }
}

/// The stream checks each operation of its peer. A violation ends only the connection of this peer.
#[test]
fn protocol_violations_end_the_connection() {
    let lab = DeviceTest::start();
    if !applies(!lab.is_iwarp(), BY_HAND) {
        return;
    }
    let mut config = Config::default();
    config.receive_buffer = 1000;
    config.receive_queue = 4;
    let listener = Listener::bind_with(lab.at(0), &config).unwrap();
    let address = listener.local_addr().unwrap();
    // The thread below accepts connections until the receiver of the channel is dropped.
    let (sender, accepted) = std::sync::mpsc::channel();
    let accepting =
        thread::spawn(move || while sender.send(listener.accept().unwrap().0).is_ok() {});

    let other_version = Peer::connect(address, 2);
    assert_eq!(other_version.err(), Some(CmEventType::REJECTED));
    // Each entry violates the protocol: more bytes than the receive memory can hold, writes without
    // credit, an unknown operation, an unknown control message.
    for says in [
        &[("", 1001)][..],
        &[("1", 1), ("2", 1), ("3", 1), ("4", 1), ("5", 1)],
        &[("", 0xa000_0000)],
        &[("", 0xe000_0007)],
    ] {
        let peer = Peer::connect(address, 1).unwrap();
        let mut stream = accepted.recv_timeout(TIME_LIMIT).unwrap();
        peer.say(b"fine", 4);
        let mut buffer = [0; 4];
        stream.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"fine");
        for (bytes, immediate) in says {
            peer.say(bytes.as_bytes(), *immediate);
        }
        let error = loop {
            // Bytes that arrived before the violation can still be read.
            match stream.read(&mut buffer) {
                Ok(count) => assert!(count > 0, "{says:?}: unexpected end of file"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{says:?}");
        let text = error.to_string();
        let known = text.contains("violated the protocol");
        assert!(known, "{says:?}: {text}");
    }
    let client = Stream::connect_with(address, &patient()).unwrap();
    let server = accepted.recv_timeout(TIME_LIMIT).unwrap();
    write_sequence(&client, 100, 100);
    read_sequence(&server, 100, 100);
    // The accepting thread accepts one more connection, cannot send it to the channel, and ends.
    drop(accepted);
    drop(Stream::connect_with(address, &patient()));
    accepting.join().unwrap();
}
