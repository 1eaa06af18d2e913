//! The bytes on the wire, written down a second time on purpose: a slip in the library's own codec
//! shows here.

/// The protocol's version.
pub(crate) const VERSION: u8 = 3;
/// The receives that either side of these tests has for data.
pub(crate) const WINDOW: u16 = 4;
/// The largest payload of a data frame that either side takes.
pub(crate) const EAGER_SIZE: u32 = 1000;
/// Bytes of header before each payload.
pub(crate) const HEADER_LEN: usize = 16;
/// The largest message that either side takes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 20;
/// Receives that the library has for control frames, beside those for data.
pub(crate) const CONTROL_RECEIVES: usize = 12;

pub(crate) const DATA: u8 = 1;
pub(crate) const GRANT: u8 = 2;
pub(crate) const PING: u8 = 3;
pub(crate) const PONG: u8 = 4;
pub(crate) const CLOSE: u8 = 5;
pub(crate) const ABORT: u8 = 6;
pub(crate) const CLOSE_ACK: u8 = 7;
pub(crate) const RENDEZVOUS: u8 = 16;

/// A frame as a peer that keeps to the protocol would send it first: change single fields.
#[derive(Debug, Clone)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// How far its number is ahead of the right one, which `Peer::send` adds.
    pub(crate) ahead: u16,
    pub(crate) grant: u32,
    /// `None`: the payload's.
    pub(crate) len: Option<u32>,
    pub(crate) arg: u32,
    pub(crate) payload: &'a [u8],
}

impl Frame<'static> {
    pub(crate) const fn control(kind: u8) -> Self {
        Self {
            kind,
            flags: 0,
            ahead: 0,
            grant: WINDOW as u32,
            len: None,
            arg: 0,
            payload: &[],
        }
    }
}

impl<'a> Frame<'a> {
    pub(crate) const fn data(payload: &'a [u8]) -> Self {
        Self {
            payload,
            ..Frame::control(DATA)
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind, self.flags];
        bytes.extend(self.ahead.to_be_bytes());
        bytes.extend(self.grant.to_be_bytes());
        bytes.extend(self.len.unwrap_or(self.payload.len() as u32).to_be_bytes());
        bytes.extend(self.arg.to_be_bytes());
        assert_eq!(bytes.len(), HEADER_LEN);
        bytes.extend(self.payload);
        bytes
    }
}

/// Where a large message lies, as a peer that keeps to the protocol would say it: change single
/// fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
    pub(crate) reserved: u32,
}

impl Descriptor {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.addr.to_be_bytes().to_vec();
        bytes.extend(self.len.to_be_bytes());
        bytes.extend(self.rkey.to_be_bytes());
        bytes.extend(self.reserved.to_be_bytes());
        assert_eq!(bytes.len(), 24);
        bytes
    }

    /// Of a rendezvous of the library.
    pub(crate) fn of(frame: &[u8]) -> Self {
        assert_eq!((frame[0], frame.len()), (RENDEZVOUS, HEADER_LEN + 24));
        let payload = &frame[HEADER_LEN..];
        let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().unwrap());
        Self {
            addr: long(0),
            len: long(8),
            rkey: word(16),
            reserved: word(20),
        }
    }
}

/// What a peer says of itself while connecting: change single fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hello {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u8,
    /// The length of the whole, as it says itself.
    pub(crate) len: u8,
    pub(crate) features: u16,
    pub(crate) window: u16,
    pub(crate) reserved: u16,
    pub(crate) eager_size: u32,
    pub(crate) max_message: u64,
    pub(crate) keepalive_ms: u32,
    pub(crate) engine: u64,
}

impl Hello {
    pub(crate) const LEN: u8 = 36;

    /// One that keeps to the protocol.
    pub(crate) const GOOD: Self = Self {
        magic: *b"rdms",
        version: VERSION,
        len: Self::LEN,
        features: 0,
        window: WINDOW,
        reserved: 0,
        eager_size: EAGER_SIZE,
        max_message: MAX_MESSAGE,
        keepalive_ms: 0,
        engine: 0x0102_0304_0506_0708,
    };

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend([self.version, self.len]);
        bytes.extend(self.features.to_be_bytes());
        bytes.extend(self.window.to_be_bytes());
        bytes.extend(self.reserved.to_be_bytes());
        bytes.extend(self.eager_size.to_be_bytes());
        bytes.extend(self.max_message.to_be_bytes());
        bytes.extend(self.keepalive_ms.to_be_bytes());
        bytes.extend(self.engine.to_be_bytes());
        assert_eq!(bytes.len(), usize::from(Self::LEN));
        bytes
    }
}
