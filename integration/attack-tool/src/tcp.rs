//! A peer over TCP that writes its bytes by hand.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};

use crate::{
    arena::Arena,
    attack::{Leave, Pace, Wire},
    mutation,
    wire::Descriptor,
};

/// The address from which attackers connect to a victim on this machine.
const SOURCE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 0);

const PREFIX: usize = 8;
const SEND: u8 = 1;
const READ: u8 = 4;
const ACK: u8 = 16;
const READ_PART: u8 = 17;
const SIGNALLED: u8 = 1;
const LAST: u8 = 2;

/// The longest payload of a part.
const LONGEST_PART: usize = 256 << 10;

/// The time for a call on the socket.
const CALL: Duration = Duration::from_millis(5);

/// The time for the answer to a request.
const SETUP: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Tcp {
    stream: TcpStream,
    /// Received, and not looked at yet.
    unread: Vec<u8>,
    /// To be written.
    outgoing: VecDeque<u8>,
    pace: Pace,
    /// Whether READs of announced messages are answered.
    serves: bool,
    /// The peer's requests that were carried out.
    requests: u32,
    heard: VecDeque<Vec<u8>>,
    over: bool,
}

/// A PDU with these arguments and payload.
pub(crate) fn pdu(kind: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 0, 0];
    bytes.extend((rest.len() as u32).to_be_bytes());
    bytes.extend(rest);
    bytes
}

/// The request of a connection, with this hello.
pub(crate) fn request(hello: &[u8]) -> Vec<u8> {
    let mut bytes = b"rdmt\x01\x01\x10".to_vec();
    bytes.push(hello.len() as u8);
    bytes.extend(hello);
    bytes
}

impl Tcp {
    /// Connects, and says nothing.
    pub(crate) fn connect(addr: SocketAddr) -> Result<Self> {
        let SocketAddr::V4(addr) = addr else {
            bail!("the victim has an address of IPv4");
        };
        let socket = socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        let stream = TcpStream::from(socket);
        bind(stream.as_raw_fd(), &SockaddrIn::from(SOURCE))?;
        connect(stream.as_raw_fd(), &SockaddrIn::from(addr))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(CALL))?;
        Ok(Self {
            stream,
            unread: Vec::new(),
            outgoing: VecDeque::new(),
            pace: Pace::Whole,
            serves: true,
            requests: 0,
            heard: VecDeque::new(),
            over: false,
        })
    }

    /// Sets the connection up, and returns the credits in the victim's hello.
    pub(crate) fn set_up(&mut self, hello: &[u8]) -> Result<u32> {
        self.stream.set_write_timeout(Some(SETUP))?;
        self.stream.set_read_timeout(Some(SETUP))?;
        self.stream.write_all(&request(hello))?;
        let mut answer = [0; PREFIX];
        self.stream.read_exact(&mut answer)?;
        let mut data = vec![0; usize::from(answer[7])];
        self.stream.read_exact(&mut data)?;
        self.stream.set_write_timeout(Some(CALL))?;
        ensure!(answer[..6] == *b"rdmt\x01\x02", "not accepted: {answer:?}");
        Ok(crate::attack::credits(&data))
    }

    /// Writes some bytes, as far as the pace lets it.
    fn flush(&mut self, arena: &Arena<'_>) {
        loop {
            let most = match self.pace {
                Pace::Whole => usize::MAX,
                Pace::Slow { bytes, .. } => bytes,
                Pace::Stuck => return,
            };
            if self.outgoing.is_empty() || self.over || !arena.rates.writes.take(arena) {
                return;
            }
            let (first, _) = self.outgoing.as_slices();
            let len = first.len().min(most);
            match self.stream.write(&first[..len]) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if is_late(error.kind()) => return,
                Err(_) => self.over = true,
            }
            if let Pace::Slow { every, .. } = self.pace {
                return arena.pause(every);
            }
        }
    }

    /// Receives something, for this time at the most.
    fn receive(&mut self, limit: Duration) {
        let mut bytes = vec![0; 64 << 10];
        // Of at least a microsecond.
        let _ = self.stream.set_read_timeout(Some(limit.max(CALL / 5)));
        match self.stream.read(&mut bytes) {
            Ok(0) => self.over = true,
            Ok(count) => self.unread.extend(&bytes[..count]),
            Err(error) if is_late(error.kind()) => {}
            Err(_) => self.over = true,
        }
        while let Some(len) = self.whole() {
            let rest = self.unread.split_off(len);
            let pdu = std::mem::replace(&mut self.unread, rest);
            self.take(&pdu);
        }
    }

    /// The length of the first PDU, if all of it has come.
    fn whole(&self) -> Option<usize> {
        let length = self.unread.get(4..PREFIX)?.first_chunk()?;
        let len = PREFIX + u32::from_be_bytes(*length) as usize;
        (self.unread.len() >= len).then_some(len)
    }

    fn take(&mut self, pdu: &[u8]) {
        let [kind, flags, ..] = *pdu else { return };
        match kind {
            SEND => self.heard.push_back(pdu[PREFIX..].to_vec()),
            READ if !self.serves => return,
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

    /// Answers a READ with the number of bytes that it asks for.
    fn answer(&mut self, arguments: &[u8]) {
        let length = arguments.get(12..16).and_then(|bytes| bytes.first_chunk());
        let mut left = length.map_or(0, |bytes| u32::from_be_bytes(*bytes) as usize);
        loop {
            let len = left.min(LONGEST_PART);
            left -= len;
            let flags = if left == 0 { LAST } else { 0 };
            let part = pdu(READ_PART, flags, &vec![7; len]);
            self.outgoing.extend(part);
            if left == 0 {
                return;
            }
        }
    }

    /// Appends these bytes to the outgoing ones.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.outgoing.extend(bytes);
    }
}

/// Whether a call on a socket ended by its time limit.
fn is_late(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

impl Wire for Tcp {
    fn say(&mut self, frame: &[u8]) {
        self.put(&pdu(SEND, 0, frame));
    }

    fn say_broken(&mut self, frame: &[u8], rng: &mut Rng) -> String {
        let mut bytes = pdu(SEND, rng.u8(0..2), frame);
        let what = match rng.u8(0..3) {
            0 => mutation::length(&mut bytes, rng),
            _ => mutation::pdu(&mut bytes, rng),
        };
        self.put(&bytes);
        format!("PDU with {what}")
    }

    fn operate(&mut self, token: Option<[u8; 24]>, rng: &mut Rng) -> String {
        let token = token.unwrap_or_else(|| [rng.u8(..); 24]);
        let (addr, key) = (&token[..8], &token[16..20]);
        let place = [addr, key].concat();
        let len = rng.usize(0..4096);
        let bytes = vec![rng.u8(..); len];
        let length = (len as u32).to_be_bytes();
        let wide = [place.as_slice(), &[0; 16]].concat();
        let count = rng.u32(0..4).to_be_bytes();
        let (kind, flags, rest) = match rng.u8(0..10) {
            0 => (2, LAST, [&place, &bytes[..]].concat()),
            1 => (2, 0, [&place, &bytes[..]].concat()),
            2 => (3, LAST, [&place, &count[..], &bytes[..]].concat()),
            3 | 4 => (READ, 0, [&place, &length[..]].concat()),
            5 => (5, 0, wide),
            6 => (6, 0, wide),
            7 => (ACK, 0, count.to_vec()),
            8 => (READ_PART, LAST, bytes),
            _ => (18, 0, place[..8].to_vec()),
        };
        let mut bytes = pdu(kind, flags, &rest);
        let what = match rng.u8(0..6) {
            0 => mutation::pdu(&mut bytes, rng),
            1 => mutation::length(&mut bytes, rng),
            _ => "nothing changed".to_owned(),
        };
        self.put(&bytes);
        format!("PDU of kind {kind} with {what}")
    }

    fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    fn serve(&mut self, serves: bool) {
        self.serves = serves;
    }

    fn memory(&mut self, len: u64) -> Descriptor {
        Descriptor {
            addr: 1 << 40,
            len,
            rkey: 1,
            reserved: 0,
        }
    }

    fn pump(&mut self, arena: &Arena<'_>, time: Duration) {
        let end = arena.end.min(Instant::now() + time);
        loop {
            self.flush(arena);
            let left = end.saturating_duration_since(Instant::now());
            let limit = if self.outgoing.is_empty() {
                CALL * 10
            } else {
                CALL
            };
            self.receive(left.min(limit));
            if self.over || left.is_zero() || !self.heard.is_empty() {
                return;
            }
        }
    }

    fn write_only(&mut self, arena: &Arena<'_>) {
        self.flush(arena);
    }

    fn heard(&mut self) -> Option<Vec<u8>> {
        self.heard.pop_front()
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn leave(mut self: Box<Self>, leave: Leave, arena: &Arena<'_>) {
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
                self.pump(arena, Duration::from_secs(2));
            }
        }
    }
}
