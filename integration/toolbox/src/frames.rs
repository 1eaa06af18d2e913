//! An implementation of the wire format that tests use instead of the library's codec. If tests
//! used that codec, a mistake in it would affect both sides equally, and the tests would not detect
//! the mistake.

/// The protocol's version.
pub const VERSION: u8 = 3;
/// The number of receives for data frames that each side posts in these tests.
pub const WINDOW: u16 = 4;
/// The maximum length in bytes of the payload of a data frame. It is the same for both sides.
pub const EAGER_SIZE: u32 = 1000;
/// The length of a frame's header in bytes.
pub const HEADER_LEN: usize = 16;
/// The maximum length of a message in bytes. It is the same for both sides.
pub const MAX_MESSAGE: u64 = 1 << 20;
/// The number of receives that the library posts for control frames, in addition to those for data
/// frames.
pub const CONTROL_RECEIVES: usize = 15;

pub const DATA: u8 = 1;
pub const GRANT: u8 = 2;
pub const PING: u8 = 3;
pub const PONG: u8 = 4;
pub const CLOSE: u8 = 5;
pub const ABORT: u8 = 6;
pub const CLOSE_ACK: u8 = 7;
pub const FAILURE: u8 = 8;
pub const CONTROL_MESSAGE: u8 = 10;
pub const PERMIT: u8 = 11;
pub const LEAVE: u8 = 12;
pub const REQUEST: u8 = 13;
pub const ANSWER: u8 = 14;
pub const RENDEZVOUS: u8 = 16;
pub const BATCH: u8 = 17;
pub const FRAGMENT: u8 = 18;

/// A frame. The constructors return valid frames. Tests then change individual fields.
#[derive(Debug, Clone)]
pub struct Frame<'a> {
    pub kind: u8,
    pub flags: u8,
    /// The frame number minus the number that the receiver expects next. This difference is 0 in a
    /// valid frame. `Peer::send` adds the expected number.
    pub ahead: u16,
    pub grant: u32,
    /// The value of the length field. If `None`, the length of the payload is used.
    pub len: Option<u32>,
    pub arg: u32,
    pub payload: &'a [u8],
}

impl Frame<'static> {
    pub const fn control(kind: u8) -> Self {
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
    pub const fn data(payload: &'a [u8]) -> Self {
        Self {
            payload,
            ..Frame::control(DATA)
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
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

/// The payload of a Rendezvous frame, which announces a large message.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    pub addr: u64,
    pub len: u64,
    pub rkey: u32,
    pub reserved: u32,
}

impl Descriptor {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.addr.to_be_bytes().to_vec();
        bytes.extend(self.len.to_be_bytes());
        bytes.extend(self.rkey.to_be_bytes());
        bytes.extend(self.reserved.to_be_bytes());
        assert_eq!(bytes.len(), 24);
        bytes
    }

    /// Decodes the descriptor in a Rendezvous frame that the library has sent.
    pub fn of(frame: &[u8]) -> Self {
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

/// The hello that a peer sends to start a connection.
#[derive(Debug, Clone, Copy)]
pub struct Hello {
    pub magic: [u8; 4],
    pub version: u8,
    /// The value of the length field: the length of the whole hello in bytes.
    pub len: u8,
    pub features: u16,
    pub window: u16,
    pub reserved: u16,
    pub eager_size: u32,
    pub max_message: u64,
    pub keepalive_ms: u32,
    pub engine: u64,
}

impl Hello {
    pub const LEN: u8 = 36;
    /// The feature bit of a connection request whose private data is sent in a separate frame.
    pub const LONG_REQUEST: u16 = 256;

    /// The hello of a peer that follows the protocol.
    pub const GOOD: Self = Self {
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

    pub fn bytes(&self) -> Vec<u8> {
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
