//! An attacker's side of a connection over TCP. It encodes and decodes the protocol without the
//! library.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream},
    os::fd::AsRawFd,
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};

use super::{
    arena::Arena,
    connection::{Leave, Pace, State, Wire},
    mutation,
    wire::Descriptor,
};

/// The source address of attackers. Honest clients use a different one.
const SOURCE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 0);

const PREFIX: usize = 8;
const SEND: u8 = 1;
const READ: u8 = 4;
const ACK: u8 = 16;
const READ_PART: u8 = 17;
const SIGNALLED: u8 = 1;
const LAST: u8 = 2;

/// The maximum payload in bytes of a PDU that answers a READ.
const LONGEST_PART: usize = 256 << 10;

/// The time limit for the answer to a connection request.
const SETUP: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Tcp {
    stream: TcpStream,
    /// Received bytes that have not been processed yet.
    unread: Vec<u8>,
    /// Bytes that are queued for writing.
    outgoing: VecDeque<u8>,
    /// The number of the victim's requests that this side has executed.
    requests: u32,
    state: State,
}

/// Returns a PDU of kind `kind`. `rest` contains its arguments and its payload.
pub(super) fn pdu(kind: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 0, 0];
    bytes.extend((rest.len() as u32).to_be_bytes());
    bytes.extend(rest);
    bytes
}

/// Returns a connection request that contains `hello`.
pub(super) fn request(hello: &[u8]) -> Vec<u8> {
    let mut bytes = b"rdmt\x01\x01\x10".to_vec();
    bytes.push(hello.len() as u8);
    bytes.extend(hello);
    bytes
}

impl Tcp {
    /// Establishes the TCP connection, and sends a connection request. If `waits` is set, waits for
    /// the victim's answer. Returns the connection and the victim's hello, which is empty without
    /// an answer.
    pub(super) fn connect(
        addr: SocketAddr,
        request: &[u8],
        waits: bool,
    ) -> Result<(Self, Vec<u8>)> {
        let SocketAddr::V4(addr) = addr else {
            bail!("the victim's address must be IPv4");
        };
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
        let stream = TcpStream::from(socket);
        bind(stream.as_raw_fd(), &SockaddrIn::from(SOURCE))?;
        connect(stream.as_raw_fd(), &SockaddrIn::from(addr))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SETUP))?;
        stream.set_write_timeout(Some(SETUP))?;
        let (hello, outgoing) = match waits {
            true => (set_up(&stream, request)?, VecDeque::new()),
            false => (Vec::new(), request.to_vec().into()),
        };
        stream.set_nonblocking(true)?;
        let this = Self {
            stream,
            unread: Vec::new(),
            outgoing,
            requests: 0,
            state: State::default(),
        };
        Ok((this, hello))
    }

    /// Removes the first PDU from `unread`. Returns `None` if the PDU is still incomplete.
    fn next_pdu(&mut self) -> Option<Vec<u8>> {
        let length = self.unread.get(4..PREFIX)?.first_chunk()?;
        let len = PREFIX + u32::from_be_bytes(*length) as usize;
        (self.unread.len() >= len).then(|| self.unread.drain(..len).collect())
    }

    fn take(&mut self, pdu: &[u8]) {
        let [kind, flags, ..] = *pdu else { return };
        match kind {
            SEND => self.state.received.push_back(pdu[PREFIX..].to_vec()),
            READ if self.state.ignores_reads => return,
            READ => self.answer(&pdu[PREFIX..]),
            _ => {}
        }
        if kind < ACK && (kind > 3 || kind == SEND || flags & LAST != 0) {
            self.requests = self.requests.wrapping_add(1);
        }
        if flags & SIGNALLED != 0 && kind < ACK {
            let requests = self.requests.to_be_bytes();
            self.outgoing.extend(self::pdu(ACK, 0, &requests));
        }
    }

    /// Queues the answer to a READ. `arguments` contains the number of bytes to read.
    fn answer(&mut self, arguments: &[u8]) {
        let length = arguments.get(12..16).and_then(|bytes| bytes.first_chunk());
        let len = length.map_or(0, |bytes| u32::from_be_bytes(*bytes) as usize);
        let last = len.saturating_sub(1) / LONGEST_PART;
        for part in 0..=last {
            let len = (len - part * LONGEST_PART).min(LONGEST_PART);
            let flags = if part == last { LAST } else { 0 };
            self.outgoing.extend(pdu(READ_PART, flags, &vec![7; len]));
        }
    }
}

/// Sends a connection request. Returns the victim's hello.
fn set_up(mut stream: &TcpStream, request: &[u8]) -> Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut answer = [0; PREFIX];
    stream.read_exact(&mut answer)?;
    ensure!(answer[..6] == *b"rdmt\x01\x02", "not accepted: {answer:?}");
    let mut hello = vec![0; usize::from(answer[7])];
    stream.read_exact(&mut hello)?;
    Ok(hello)
}

impl Wire for Tcp {
    fn state(&mut self) -> &mut State {
        &mut self.state
    }

    fn send_frame(&mut self, frame: &[u8]) {
        self.outgoing.extend(pdu(SEND, 0, frame));
    }

    fn send_broken(&mut self, frame: &[u8], rng: &mut Rng) {
        let mut bytes = pdu(SEND, rng.u8(0..2), frame);
        match rng.u8(0..3) {
            0 => mutation::length(&mut bytes, rng),
            _ => mutation::pdu(&mut bytes, rng),
        }
        self.outgoing.extend(bytes);
    }

    fn operate(&mut self, token: [u8; 24], rng: &mut Rng) {
        let (addr, key) = (&token[..8], &token[16..20]);
        let bytes = vec![rng.u8(..); rng.usize(0..4096)];
        let length = (bytes.len() as u32).to_be_bytes();
        let count = rng.u32(0..4).to_be_bytes();
        let (kind, flags, rest) = match rng.u8(0..10) {
            0 => (2, LAST, [addr, key, &bytes].concat()),
            1 => (2, 0, [addr, key, &bytes].concat()),
            2 => (3, LAST, [addr, key, &count, &bytes].concat()),
            3 | 4 => (READ, 0, [addr, key, &length].concat()),
            kind @ (5 | 6) => (kind, 0, [addr, key, &[0; 16]].concat()),
            7 => (ACK, 0, count.to_vec()),
            8 => (READ_PART, LAST, bytes),
            _ => (18, 0, addr.to_vec()),
        };
        let mut bytes = pdu(kind, flags, &rest);
        match rng.u8(0..6) {
            0 => mutation::pdu(&mut bytes, rng),
            1 => mutation::length(&mut bytes, rng),
            _ => {}
        }
        self.outgoing.extend(bytes);
    }

    fn memory(&mut self, len: u64) -> Descriptor {
        Descriptor {
            addr: 1 << 40,
            len,
            rkey: 1,
            reserved: 0,
        }
    }

    fn flush(&mut self, arena: &Arena<'_>) {
        while !self.outgoing.is_empty() && !self.state.has_ended {
            let (most, pause) = match self.state.pace {
                Pace::Whole => (usize::MAX, Duration::ZERO),
                Pace::Slow(bytes, pause) => (bytes, pause),
                Pace::Stuck => return,
            };
            if !arena.may_write() {
                return;
            }
            let (first, _) = self.outgoing.as_slices();
            match self.stream.write(&first[..first.len().min(most)]) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.state.has_ended = true,
            }
            if !pause.is_zero() {
                return arena.pause(pause);
            }
        }
    }

    fn poll(&mut self) {
        let mut bytes = vec![0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(count @ 1..) => self.unread.extend(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.state.has_ended = true,
        }
        while let Some(pdu) = self.next_pdu() {
            self.take(&pdu);
        }
    }

    fn leave(&mut self, leave: Leave) {
        match leave {
            Leave::Close => {}
            Leave::Reset => {
                let reset = nix::libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                };
                let _ = setsockopt(&self.stream, sockopt::Linger, &reset);
            }
            Leave::Half => {
                let _ = self.stream.shutdown(Shutdown::Write);
                self.outgoing.clear();
            }
        }
    }
}
