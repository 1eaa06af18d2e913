//! Peers of sessions over TCP, and a proxy. The peers send any bytes that a test passes to them.
//! The proxy records requests and replies.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use crate::{
    TIME_LIMIT,
    tcp_peer::{frame_with, pdu},
};

/// The bit in the field `features` of a hello that offers or resumes a session.
pub const SESSION: u16 = 16;
/// The bit in the field `features` of a hello that resumes a session.
pub const RESUMES: u16 = 32;

/// The code of a rejection by a busy side.
pub const BUSY: u16 = 8;
/// The code of a rejection by a side that does not know the session.
pub const UNKNOWN: u16 = 10;
/// The code of a rejection by a side that has closed the session.
pub const SESSION_ENDED: u16 = 11;

/// The kind of a Ping frame.
pub const PING: u8 = 3;
/// The kind of a Pong frame.
pub const PONG: u8 = 4;
/// The kind of a Close frame.
pub const CLOSE: u8 = 5;
/// The kind of a CloseAck frame, which acknowledges a Close frame.
pub const CLOSE_ACK: u8 = 7;
const FAILURE: u8 = 8;

/// The code of a Failure frame from a side whose keepalive has timed out.
pub const KEEPALIVE_TIMEOUT: u32 = 4;

/// The window of the raw sides, in messages.
pub const WINDOW: u32 = 4;

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The request was accepted. Contains the bytes after the hello.
    Accepted(Vec<u8>),
    /// The request was rejected. Contains the code, and the fields `own` and `theirs`.
    Rejected(u16, u64, u64),
}

/// Returns the private data of a request or a reply: a hello with the features `features`, followed
/// by `data`.
fn hello(features: u16, data: &[u8]) -> Vec<u8> {
    let mut hello = b"rdms\x03".to_vec();
    hello.push(36 + data.len() as u8);
    hello.extend(features.to_be_bytes());
    hello.extend((WINDOW as u16).to_be_bytes());
    hello.extend(b"\0\0\0\0\x03\xe8");
    hello.extend((1_u64 << 20).to_be_bytes());
    hello.extend([0; 4]);
    hello.extend(7_u64.to_be_bytes());
    hello.extend(data);
    hello
}

fn setup(kind: u8, private_data: &[u8]) -> Vec<u8> {
    let head = [
        b'r',
        b'd',
        b'm',
        b't',
        1,
        kind,
        16,
        private_data.len() as u8,
    ];
    [&head, private_data].concat()
}

/// Returns the bytes that follow the hello in a request to resume.
pub fn resume_data(id: &[u8; 12], epoch: u32, received: u32) -> Vec<u8> {
    let numbers = [epoch.to_be_bytes(), received.to_be_bytes()];
    [&id[..], numbers.as_flattened()].concat()
}

/// Parses a request to resume the session `id`. Returns two fields of the request: the epoch, and
/// the number of messages that the requesting side has received.
pub fn epoch_and_received(data: &[u8], id: &[u8; 12]) -> (u32, u32) {
    assert_eq!((data.len(), &data[..12]), (20, &id[..]));
    let number = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
    (number(12), number(16))
}

/// Connects and sends a request. Returns the connection and the reply.
pub fn request_with(address: SocketAddr, features: u16, data: &[u8]) -> (Raw, Answer) {
    let mut raw = Raw::connect(address);
    raw.request(features, data);
    let answer = raw.answer();
    (raw, answer)
}

/// Connects and sends a request to resume a session. Returns the connection and the reply.
pub fn request_resume(
    address: SocketAddr,
    id: &[u8; 12],
    epoch: u32,
    received: u32,
) -> (Raw, Answer) {
    let data = resume_data(id, epoch, received);
    request_with(address, SESSION | RESUMES, &data)
}

/// One side of a connection. The test itself produces all bytes that this side sends.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    /// The grant in the frames that this side sends: the number of messages that the other side may
    /// send in total.
    pub granted: u32,
    frames: u16,
    requests: u32,
}

impl Raw {
    fn from_stream(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            granted: WINDOW,
            frames: 0,
            requests: 0,
        }
    }

    /// Connects to `address`, but sends no request.
    pub fn connect(address: SocketAddr) -> Self {
        Self::from_stream(TcpStream::connect(address).unwrap())
    }

    /// Returns the address of this side.
    pub fn local_addr(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// Shuts down the stream in both directions.
    pub fn hang_up(&self) {
        self.stream.shutdown(Shutdown::Both).unwrap();
    }

    /// Writes bytes to the stream.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a request whose hello has the features `features` and is followed by `data`.
    pub fn request(&mut self, features: u16, data: &[u8]) {
        self.write(&setup(1, &hello(features, data)));
    }

    /// Reads a setup message. Returns its kind and its private data.
    fn read_setup(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let setup = read_setup(&mut self.stream)?;
        Ok((setup[5], setup[8..].to_vec()))
    }

    /// Reads the reply to a request.
    pub fn answer(&mut self) -> Answer {
        self.try_answer().expect("the other side must reply")
    }

    /// Reads the reply to a request. Returns `None` if the other side closes the connection without
    /// replying.
    pub fn try_answer(&mut self) -> Option<Answer> {
        let (kind, data) = self.read_setup().ok()?;
        if kind == 2 {
            return Some(Answer::Accepted(data[36..].to_vec()));
        }
        assert_eq!((kind, &data[..6]), (3, &b"rdmR\x03\x18"[..]));
        let number = |at: usize| u64::from_be_bytes(data[at..at + 8].try_into().unwrap());
        let code = u16::from_be_bytes([data[6], data[7]]);
        Some(Answer::Rejected(code, number(8), number(16)))
    }

    /// Sends a message.
    pub fn send(&mut self, payload: &[u8]) {
        let frame = frame_with(self.granted, self.frames, payload);
        self.frames += 1;
        self.write(&pdu(1, 0, &frame));
    }

    /// Sends a control frame.
    pub fn control(&mut self, kind: u8) {
        let mut frame = frame_with(self.granted, self.frames, b"");
        frame[0] = kind;
        self.frames += 1;
        self.write(&pdu(1, 0, &frame));
    }

    /// Sends a Failure frame with code `code`, as the final frame of this side.
    pub fn fail(&mut self, code: u32) {
        let mut frame = frame_with(self.granted, self.frames, b"");
        frame[0] = FAILURE;
        frame[12..16].copy_from_slice(&code.to_be_bytes());
        self.write(&pdu(1, 0, &frame));
    }

    /// Sends a control frame of kind `kind` as the final frame, and requests an acknowledgement.
    /// Reads until the other side closes the stream. Returns the number of frames that the other
    /// side has acknowledged.
    pub fn finish(mut self, kind: u8) -> u32 {
        let mut frame = frame_with(self.granted, self.frames, b"");
        frame[0] = kind;
        self.write(&pdu(1, 1, &frame));
        let mut acknowledged = 0;
        let mut prefix = [0; 8];
        while self.stream.read_exact(&mut prefix).is_ok() {
            let [kind, _, _, _, len @ ..] = prefix;
            let mut rest = vec![0; u32::from_be_bytes(len) as usize];
            self.stream.read_exact(&mut rest).unwrap();
            if kind == 16 {
                acknowledged = u32::from_be_bytes(rest.try_into().unwrap());
            }
        }
        acknowledged
    }

    /// Reads the next frame, and acknowledges it if its sender requests an acknowledgement.
    fn frame(&mut self) -> Vec<u8> {
        loop {
            let mut prefix = [0; 8];
            self.stream.read_exact(&mut prefix).unwrap();
            let [kind, flags, _, _, len @ ..] = prefix;
            let mut rest = vec![0; u32::from_be_bytes(len) as usize];
            self.stream.read_exact(&mut rest).unwrap();
            if kind != 1 {
                continue;
            }
            self.requests += 1;
            if flags & 1 != 0 {
                self.write(&pdu(16, 0, &self.requests.to_be_bytes()));
            }
            return rest;
        }
    }

    /// Reads the next frame, and returns its kind.
    pub fn next_kind(&mut self) -> u8 {
        self.frame()[0]
    }

    /// Reads frames until a message arrives, and returns the message's payload.
    pub fn receive(&mut self) -> Vec<u8> {
        loop {
            let frame = self.frame();
            if frame[0] == 1 {
                return frame[16..].to_vec();
            }
        }
    }
}

/// A listener. The test itself produces all replies that this listener sends.
#[derive(Debug)]
pub struct Server(TcpListener);

impl Server {
    /// Listens on a free port of 127.0.0.1.
    pub fn bind() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Receives the next request. Returns the connection, and the bytes after the request's hello.
    fn receive_request(&self) -> (Raw, Vec<u8>) {
        let mut raw = Raw::from_stream(self.0.accept().unwrap().0);
        let (kind, data) = raw.read_setup().unwrap();
        assert_eq!(kind, 1);
        (raw, data[36..].to_vec())
    }

    /// Accepts the next request. The reply is a hello with the features `features`, followed by
    /// `data`. Returns the connection, and the bytes after the hello of the request.
    pub fn accept(&self, features: u16, data: &[u8]) -> (Raw, Vec<u8>) {
        let (mut raw, asked) = self.receive_request();
        raw.write(&setup(2, &hello(features, data)));
        (raw, asked)
    }

    /// Accepts the next request like [`accept`](Self::accept), and grants credits for `credits`
    /// messages.
    pub fn accept_with_credits(&self, credits: u16, data: &[u8]) -> Raw {
        let (mut raw, _) = self.receive_request();
        let mut hello = hello(SESSION, data);
        hello[10..12].copy_from_slice(&credits.to_be_bytes());
        raw.granted = credits.into();
        raw.write(&setup(2, &hello));
        raw
    }

    /// Rejects the next request with the code `code`, and with the fields `own` and `theirs`.
    pub fn reject(&self, code: u16, own: u64, theirs: u64) {
        let (mut raw, _) = self.receive_request();
        let mut reject = b"rdmR\x03\x18".to_vec();
        reject.extend(code.to_be_bytes());
        reject.extend(own.to_be_bytes());
        reject.extend(theirs.to_be_bytes());
        raw.write(&setup(3, &reject));
    }
}

/// A proxy that records the request and the reply of each connection. Any host on the network path
/// can record the same bytes.
#[derive(Debug)]
pub struct Recorder {
    /// The address on which the proxy listens.
    pub address: SocketAddr,
    record: Arc<Mutex<Record>>,
}

#[derive(Debug, Default)]
struct Record {
    requests: Vec<Vec<u8>>,
    replies: Vec<Vec<u8>>,
    streams: Vec<TcpStream>,
}

impl Recorder {
    /// Starts a proxy that forwards connections to `server`.
    pub fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let record = Arc::new(Mutex::new(Record::default()));
        let of_thread = Arc::clone(&record);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                let mut record = of_thread.lock().unwrap();
                for (from, to, is_request) in [(&client, &server, true), (&server, &client, false)]
                {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let record = Arc::clone(&of_thread);
                    thread::spawn(move || carry(from, to, &record, is_request));
                }
                record.streams.extend([client, server]);
            }
        });
        Self { address, record }
    }

    /// Returns the identity of the session, which the first reply contains.
    pub fn session(&self) -> [u8; 12] {
        let record = self.record.lock().unwrap();
        record.replies[0][8 + 36..].try_into().unwrap()
    }

    /// Returns the number of recorded requests.
    pub fn requests(&self) -> usize {
        self.record.lock().unwrap().requests.len()
    }

    /// Returns the most recent request, with its header.
    pub fn last_request(&self) -> Vec<u8> {
        self.record.lock().unwrap().requests.last().unwrap().clone()
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for stream in self.record.lock().unwrap().streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn read_setup(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 8];
    from.read_exact(&mut bytes)?;
    assert_eq!(bytes[..5], *b"rdmt\x01");
    bytes.resize(8 + usize::from(bytes[7]), 0);
    from.read_exact(&mut bytes[8..])?;
    Ok(bytes)
}

fn carry(mut from: TcpStream, mut to: TcpStream, record: &Mutex<Record>, is_request: bool) {
    let _: io::Result<()> = (|| {
        let setup = read_setup(&mut from)?;
        {
            let mut record = record.lock().unwrap();
            let Record {
                requests, replies, ..
            } = &mut *record;
            let list = if is_request { requests } else { replies };
            list.push(setup.clone());
        }
        to.write_all(&setup)?;
        io::copy(&mut from, &mut to)?;
        to.shutdown(Shutdown::Write)
    })();
}
