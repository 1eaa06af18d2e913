//! A raw TCP peer and the endpoint to which it connects. The test itself produces every byte that
//! the peer sends.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
};

use rdmsg::{Config, Connector, Endpoint, Engine, Listener};

use crate::{TIME_LIMIT, connect_and_accept};

/// A listener for raw peers, and a bystander: a connection that the raw peers must not affect.
#[derive(Debug)]
pub struct Stage {
    /// The listener, which has accepted the bystander.
    pub listener: Listener,
    /// The connecting end of the bystander.
    pub near: Endpoint,
    /// The accepting end of the bystander.
    pub far: Endpoint,
}

impl Stage {
    /// Connects the bystander. All connections use `config`, with [`TIME_LIMIT`] as the connect
    /// timeout. If `config` has the default keepalive interval, they have no keepalive, because raw
    /// peers do not answer Pings.
    pub fn with(config: Config) -> Self {
        Self::on(&Engine::new().unwrap(), config)
    }

    /// Does the same as [`with`](Self::with), on the engine `engine`.
    pub fn on(engine: &Engine, config: Config) -> Self {
        let config = config.with(|c| {
            c.connect_timeout = TIME_LIMIT;
            if c.keepalive_interval == Config::default().keepalive_interval {
                c.keepalive_interval = None;
            }
        });
        let listener = Listener::builder()
            .config(&config)
            .engine(engine)
            .bind("127.0.0.1:0")
            .unwrap();
        let connector = Connector::new().config(&config).engine(engine);
        let (near, far) = connect_and_accept(&connector, &listener);
        Self {
            listener,
            near,
            far,
        }
    }

    /// Connects a raw peer with a valid hello. Returns the peer, and the endpoint on the other
    /// side.
    pub fn connect(&self) -> (Peer, Endpoint) {
        self.connect_with(4)
    }

    /// Does the same as [`connect`](Self::connect), with a peer whose window is `window`.
    pub fn connect_with(&self, window: u8) -> (Peer, Endpoint) {
        let addr = self.listener.local_addr();
        let peer = thread::spawn(move || Peer::connect(addr, window).unwrap());
        let endpoint = self.listener.accept_timeout(TIME_LIMIT).unwrap();
        (peer.join().unwrap(), endpoint)
    }

    /// Asserts that the bystander carries messages in both directions.
    pub fn assert_unaffected(&self) {
        self.near.send(b"well").unwrap();
        assert_eq!(*self.far.recv_timeout(TIME_LIMIT).unwrap(), *b"well");
        self.far.send(b"so am I").unwrap();
        assert_eq!(*self.near.recv_timeout(TIME_LIMIT).unwrap(), *b"so am I");
    }
}

/// A peer that writes the bytes of the protocol itself, without the library.
#[derive(Debug)]
pub struct Peer {
    /// The stream, which carries PDUs after the hellos.
    pub stream: TcpStream,
}

impl Peer {
    fn connect(addr: SocketAddr, window: u8) -> io::Result<Self> {
        Self::from_stream(TcpStream::connect(addr)?, window)
    }

    /// Sends a hello over a connected stream, and reads the reply.
    pub fn from_stream(stream: TcpStream, window: u8) -> io::Result<Self> {
        Self::serving(stream, window, 16)
    }

    /// Does the same as [`from_stream`](Self::from_stream), for a peer that serves `reads`
    /// concurrent READs.
    pub fn serving(stream: TcpStream, window: u8, reads: u8) -> io::Result<Self> {
        let hello = Self::hello(window);
        Self::with_hello(stream, &hello, reads)
    }

    /// Does the same as [`from_stream`](Self::from_stream), with the hello `hello`, for a peer that
    /// serves `reads` concurrent READs.
    pub fn with_hello(stream: TcpStream, hello: &[u8], reads: u8) -> io::Result<Self> {
        let mut peer = Self::introduce(stream, hello, reads)?;
        let mut accept = [0; 8 + 36];
        peer.stream.read_exact(&mut accept)?;
        assert_eq!(accept[..6], *b"rdmt\x01\x02");
        Ok(peer)
    }

    /// Sends a request with the hello `hello`, as a peer that serves `reads` concurrent READs. Does
    /// not wait for the reply.
    pub fn introduce(mut stream: TcpStream, hello: &[u8], reads: u8) -> io::Result<Self> {
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        stream.set_write_timeout(Some(TIME_LIMIT))?;
        stream.write_all(&[b'r', b'd', b'm', b't', 1, 1, reads, 0x24])?;
        stream.write_all(hello)?;
        Ok(Self { stream })
    }

    /// Returns a hello with the window `window`.
    pub fn hello(window: u8) -> Vec<u8> {
        let mut hello = b"rdms\x03\x24\0\0\0".to_vec();
        hello.push(window);
        hello.extend(b"\0\0\0\0\x03\xe8");
        hello.extend((1_u64 << 20).to_be_bytes());
        hello.extend([0; 4]);
        hello.extend(7_u64.to_be_bytes());
        hello
    }

    /// Sends bytes. Ignores errors, because the other side may have ended the connection.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }
}

/// Returns a PDU: a header with the kind `kind` and the flags `flags`, followed by `arguments`.
pub fn pdu(kind: u8, flags: u8, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 0, 0];
    bytes.extend((arguments.len() as u32).to_be_bytes());
    bytes.extend(arguments);
    bytes
}

/// Returns a data frame with the sequence number `number`.
pub fn frame(number: u16, payload: &[u8]) -> Vec<u8> {
    frame_with(4, number, payload)
}

/// Returns a data frame with the sequence number `number` and the grant `grant`.
pub fn frame_with(grant: u32, number: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    bytes.extend(number.to_be_bytes());
    bytes.extend(grant.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}
