//! The wire format: the private data of connection requests and replies, the immediate data of
//! writes, and windows.

/// The number of entries in a table of windows. Each side has such a table, and the peer stores its
/// windows in the entries in rotation.
pub(super) const WINDOWS: u32 = 2;

/// A range of one side's memory to which the peer may write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) length: u32,
}

impl Window {
    pub(super) const LEN: usize = 16;

    /// Encodes the window in the byte order of the host that will read it.
    pub(super) fn to_bytes(self, big_endian: bool) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        if !big_endian {
            bytes[..8].reverse();
            bytes[8..12].reverse();
            bytes[12..].reverse();
        }
        bytes
    }

    /// Decodes a window in network byte order.
    pub(super) fn from_be(bytes: [u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes([i, j, k, l]),
            length: u32::from_be_bytes([m, n, o, p]),
        }
    }

    /// Decodes a window in the byte order of this host.
    pub(super) fn from_ne(bytes: [u8; Self::LEN]) -> Self {
        let Self { addr, rkey, length } = Self::from_be(bytes);
        Self {
            addr: u64::from_be(addr),
            rkey: u32::from_be(rkey),
            length: u32::from_be(length),
        }
    }
}

/// Immediate data: a 3-bit operation code and its 29-bit argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Immediate {
    /// The number of bytes that the sender has written into its current window.
    Data(u32),
    /// The sequence number of the first write that is not allowed yet. The sender may have stored a
    /// window in the receiver's table before it sent this message.
    Credits(u16),
    /// A message about mapped memory, a feature that this crate does not use.
    Mapping,
    /// The sender has closed the connection.
    Disconnect,
    /// The sender is alive.
    Keepalive,
    /// The sender has shut down writing.
    Shutdown,
}

impl Immediate {
    const DATA_BITS: u32 = 29;

    pub(super) fn encode(self) -> u32 {
        let (op, data) = match self {
            Self::Data(len) => (0, len),
            Self::Credits(limit) => (4, limit.into()),
            Self::Mapping => (6, 0),
            Self::Disconnect => (7, 0),
            Self::Keepalive => (7, 1),
            Self::Shutdown => (7, 2),
        };
        op << Self::DATA_BITS | data
    }

    /// Decodes immediate data. Returns `None` if the protocol does not define the value.
    pub(super) fn decode(bits: u32) -> Option<Self> {
        let data = bits & ((1 << Self::DATA_BITS) - 1);
        match (bits >> Self::DATA_BITS, data) {
            (0, len) => Some(Self::Data(len)),
            // The cast is lossless, because the sequence numbers of writes have 16 bits.
            (4, limit) => Some(Self::Credits(limit as u16)),
            (6, _) => Some(Self::Mapping),
            (7, 0) => Some(Self::Disconnect),
            (7, 1) => Some(Self::Keepalive),
            (7, 2) => Some(Self::Shutdown),
            _ => None,
        }
    }
}

/// The private data that each side sends while connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnData {
    /// Whether the sender's host is big-endian.
    pub(super) big_endian: bool,
    /// The number of writes that the sender of this data can receive: its posted receives, except
    /// those for control messages.
    pub(super) credits: u16,
    /// The table from which the sender of this data reads the other side's windows. Its `length` is
    /// the number of windows.
    pub(super) target: Window,
    /// The first window into which the receiver of this data may write.
    pub(super) data: Window,
}

impl ConnData {
    pub(super) const LEN: usize = 40;
    const VERSION: u8 = 1;
    const BIG_ENDIAN: u8 = 1;
    /// The flag for a sender that supports mapped memory. The protocol requires this flag.
    const IOMAP: u8 = 2;

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = Self::VERSION;
        bytes[1] = Self::IOMAP | u8::from(self.big_endian);
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.target.to_bytes(true));
        bytes[24..].copy_from_slice(&self.data.to_bytes(true));
        bytes
    }

    /// The private data of a rejection. From these data, a peer that is not an rsocket can
    /// recognize that an rsocket rejected the connection.
    ///
    /// The data grant neither credits nor memory.
    pub(super) const NOTHING: Self = Self {
        big_endian: cfg!(target_endian = "big"),
        credits: 0,
        target: Window {
            addr: 0,
            rkey: 0,
            length: WINDOWS,
        },
        data: Window {
            addr: 0,
            rkey: 0,
            length: 0,
        },
    };

    /// Decodes private data. Returns `None` if the data belongs to another protocol or to another
    /// version of this protocol.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // The connection manager may have padded the data with zeros, so any bytes after the first
        // `LEN` are ignored.
        let bytes: &[u8; Self::LEN] = bytes.first_chunk()?;
        let [version, flags, high, low, ..] = *bytes;
        let this = Self {
            big_endian: flags & Self::BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([high, low]),
            target: Window::from_be(*bytes[8..].first_chunk()?),
            data: Window::from_be(*bytes[24..].first_chunk()?),
        };
        (version == Self::VERSION && this.target.length == WINDOWS).then_some(this)
    }
}

/// Returns true if `private_data` begins with the bytes that an `rdmsg::Listener` sends when it
/// rejects a connection.
pub(super) fn is_rejection_of_endpoints(private_data: &[u8]) -> bool {
    private_data.starts_with(b"rdmR")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window {
        addr: 0x0102_0304_0506_0708,
        rkey: 0x090a_0b0c,
        length: 2,
    };

    #[test]
    fn windows_are_in_their_readers_order() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 2];
        assert_eq!(WINDOW.to_bytes(true), bytes);
        let little = [8, 7, 6, 5, 4, 3, 2, 1, 12, 11, 10, 9, 2, 0, 0, 0];
        assert_eq!(WINDOW.to_bytes(false), little);
        assert_eq!(Window::from_be(bytes), WINDOW);
        let own = WINDOW.to_bytes(cfg!(target_endian = "big"));
        assert_eq!(Window::from_ne(own), WINDOW);
    }

    #[test]
    fn immediate_data_is_as_in_c() {
        for (immediate, bits) in [
            (Immediate::Data(0x1234), 0x0000_1234),
            (Immediate::Credits(0xffff), 0x8000_ffff),
            (Immediate::Mapping, 0xc000_0000),
            (Immediate::Disconnect, 0xe000_0000),
            (Immediate::Keepalive, 0xe000_0001),
            (Immediate::Shutdown, 0xe000_0002),
        ] {
            assert_eq!(immediate.encode(), bits);
            assert_eq!(Immediate::decode(bits), Some(immediate));
        }
        for bits in [
            0x2000_0000,
            0x4000_0000,
            0x6000_0000,
            0xa000_0000,
            0xe000_0003,
        ] {
            assert_eq!(Immediate::decode(bits), None, "{bits:#x}");
        }
    }

    #[test]
    fn private_data_is_as_in_c() {
        let data = ConnData {
            big_endian: false,
            credits: 0x0180,
            target: WINDOW,
            data: Window {
                length: 0x1_0000,
                ..WINDOW
            },
        };
        let bytes = data.to_bytes();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 0]);
        assert_eq!(bytes[20..28], [0, 0, 0, 2, 1, 2, 3, 4]);
        assert_eq!(bytes[36..], [0, 1, 0, 0]);
        let mut padded = bytes.to_vec();
        padded.resize(56, 0);
        assert_eq!(ConnData::from_bytes(&padded), Some(data));
        assert_eq!(ConnData::from_bytes(&bytes[..39]), None);
        let mut other = bytes;
        other[0] = 2;
        assert_eq!(ConnData::from_bytes(&other), None);
        let mut windows = bytes;
        windows[23] = 3;
        assert_eq!(ConnData::from_bytes(&windows), None);
    }
}
