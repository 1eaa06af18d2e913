//! A TCP peer that sends a frame byte by byte. This module composes the bytes of the protocol
//! without the library.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rdmsg::{Config, Endpoint, Engine, Listener, Stream, StreamListener, TransportChoice};

use crate::{
    matrix::{self, Peers},
    stage::TIME_LIMIT,
};

/// The kinds of PDUs that this module uses.
const SEND: u8 = 1;
const READ: u8 = 4;
const READ_PART: u8 = 17;

/// The length of a PDU's header, in bytes.
const PDU_HEADER: usize = 8;

/// The kinds of frames that this module uses.
const DATA: u8 = 1;
const RENDEZVOUS: u8 = 16;

/// The way in which a peer sends bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The peer sends nothing.
    Silence,
    /// The peer sends a frame byte by byte, starting with the header of its PDU.
    Header,
    /// The peer slowly sends a payload of 60,000 bytes. The eager size is 64 KiB, the default over
    /// TCP.
    Payload,
    /// The peer slowly sends a payload of 1,000,000 bytes. The eager size is 1 MiB, the maximum.
    LongPayload,
    /// The peer announces a large message, and slowly sends the bytes that the receiver reads.
    Large,
}

impl State {
    pub(crate) const ALL: [Self; 5] = [
        Self::Silence,
        Self::Header,
        Self::Payload,
        Self::LongPayload,
        Self::Large,
    ];

    /// Returns the interval between two bytes. A receiving thread makes up to 16 receive calls
    /// before it lets another thread poll. With an interval of 1 s, 16 calls that receive one byte
    /// each take longer than the tested deadline.
    fn pace(self) -> Duration {
        match self {
            Self::Silence | Self::Header => Duration::from_millis(300),
            Self::Payload | Self::LongPayload | Self::Large => Duration::from_millis(1000),
        }
    }

    fn config(self) -> Config {
        let eager = match self {
            Self::LongPayload => 1 << 20,
            Self::Silence | Self::Header | Self::Payload => 64 << 10,
            // A message of more than 1000 bytes is not sent in one frame.
            Self::Large => 1000,
        };
        let config = matrix::config().with(|c| c.eager_size = Some(eager));
        config.with(|c| c.transport = TransportChoice::Tcp)
    }

    /// Sends the beginning of a payload or of a large message at once. Returns the bytes that the
    /// peer then sends one by one, if any.
    fn begin(self, stream: &mut TcpStream) -> Vec<u8> {
        match self {
            Self::Silence => Vec::new(),
            Self::Header => pdu(SEND, 0, &frame(DATA, 100, &[7; 100])),
            Self::Payload | Self::LongPayload => {
                let len = if self == Self::Payload {
                    60_000
                } else {
                    1_000_000
                };
                let whole = pdu(SEND, 0, &frame(DATA, len, &vec![7; len as usize]));
                stream.write_all(&whole[..1000]).unwrap();
                vec![7; 1000]
            }
            Self::Large => {
                let mut descriptor = 0x1000_u64.to_be_bytes().to_vec();
                descriptor.extend((8_u64 << 20).to_be_bytes());
                descriptor.extend(7_u32.to_be_bytes());
                descriptor.extend([0; 4]);
                let whole = pdu(SEND, 0, &frame(RENDEZVOUS, 24, &descriptor));
                stream.write_all(&whole).unwrap();
                let len = length_of_read(stream);
                let mut answer = vec![READ_PART, 2, 0, 0];
                answer.extend(len.to_be_bytes());
                answer.extend([7; 1000]);
                stream.write_all(&answer).unwrap();
                vec![7; 1000]
            }
        }
    }
}

/// A peer, with the bytes that it has not sent yet.
type Peer = (TcpStream, std::vec::IntoIter<u8>);

/// Peers that are connected to one engine. All of them are in the same state.
pub(crate) struct SlowPeers {
    name: String,
    state: State,
    engine: Engine,
    messages: Listener,
    bytes: StreamListener,
    silent_address: TcpListener,
    peers: Arc<Mutex<Vec<Peer>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SlowPeers {
    pub(crate) fn new(state: State) -> Self {
        let engine = Engine::new().unwrap();
        let config = state.config();
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let messages = Listener::builder()
            .config(&config)
            .engine(&engine)
            .bind(local)
            .unwrap();
        let builder = Listener::builder().config(&config).engine(&engine);
        Self {
            name: format!("{state:?}"),
            state,
            messages,
            bytes: builder.bind_stream(local).unwrap(),
            silent_address: TcpListener::bind(local).unwrap(),
            engine,
            peers: Arc::default(),
            stop: Arc::default(),
            thread: None,
        }
    }

    fn connect(&self, addr: SocketAddr, features: u8) -> JoinHandle<TcpStream> {
        thread::spawn(move || connect(addr, features).unwrap())
    }

    fn keep(&self, mut stream: TcpStream) {
        let rest = self.state.begin(&mut stream);
        self.peers.lock().unwrap().push((stream, rest.into_iter()));
    }
}

impl Peers for SlowPeers {
    fn name(&self) -> &str {
        &self.name
    }

    fn endpoint(&self) -> Endpoint {
        let peer = self.connect(self.messages.local_addr(), 0);
        let endpoint = self.messages.accept_timeout(TIME_LIMIT).unwrap();
        self.keep(peer.join().unwrap());
        endpoint
    }

    fn stream(&self) -> Stream {
        let peer = self.connect(self.bytes.local_addr().unwrap(), 1);
        let (stream, _) = self.bytes.accept().unwrap();
        self.keep(peer.join().unwrap());
        stream
    }

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn silent_address(&self) -> SocketAddr {
        self.silent_address.local_addr().unwrap()
    }

    fn begin(&mut self) {
        let (peers, stop) = (Arc::clone(&self.peers), Arc::clone(&self.stop));
        let (pace, silent_address) = (self.state.pace(), self.silent_address.try_clone().unwrap());
        silent_address.set_nonblocking(true).unwrap();
        self.thread = Some(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let mut peers = peers.lock().unwrap();
                while let Ok((stream, _)) = silent_address.accept() {
                    // These bytes are the first part of a reply.
                    let answer = b"rdmt\x01\x02\x10\x24rdms\x03\x24".to_vec();
                    peers.push((stream, answer.into_iter()));
                }
                for (stream, rest) in peers.iter_mut() {
                    if let Some(byte) = rest.next() {
                        let _ = stream.write_all(&[byte]);
                    }
                }
                drop(peers);
                thread::park_timeout(pace);
            }
        }));
    }
}

impl Drop for SlowPeers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Connects as a peer. Its hello grants 4 messages: the library may send that many.
fn connect(addr: SocketAddr, features: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(TIME_LIMIT))?;
    stream.set_write_timeout(Some(TIME_LIMIT))?;
    stream.set_nodelay(true)?;
    let mut hello = b"rdms\x03\x24\0".to_vec();
    hello.extend([features, 0, 4, 0, 0]);
    hello.extend(1_000_000_u32.to_be_bytes());
    hello.extend((64_u64 << 20).to_be_bytes());
    hello.extend(0_u32.to_be_bytes());
    hello.extend(7_u64.to_be_bytes());
    stream.write_all(b"rdmt\x01\x01\x10\x24")?;
    stream.write_all(&hello)?;
    let mut accept = [0; 8 + 36];
    stream.read_exact(&mut accept)?;
    assert_eq!(accept[..6], *b"rdmt\x01\x02");
    Ok(stream)
}

fn pdu(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 0, 0];
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns the peer's first frame. The frame repeats the grant in the hello: the library may send a
/// total of 4 messages.
fn frame(kind: u8, len: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(4_u32.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}

/// Reads PDUs until the first READ request. Returns the length of the READ in bytes.
fn length_of_read(stream: &mut TcpStream) -> u32 {
    loop {
        let mut header = [0; PDU_HEADER];
        stream.read_exact(&mut header).unwrap();
        let len = u32::from_be_bytes(header[4..].try_into().unwrap());
        let mut rest = vec![0; len as usize];
        stream.read_exact(&mut rest).unwrap();
        if header[0] == READ {
            return u32::from_be_bytes(rest[12..].try_into().unwrap());
        }
    }
}
