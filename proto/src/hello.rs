use std::{fmt, ops::Deref};

use super::Capabilities;

/// The first four bytes of a hello: `rdms`.
const MAGIC: u32 = 0x7264_6d73;
/// The version of the protocol that this crate implements.
pub(super) const VERSION: u8 = 3;
/// The feature bit of a side whose application uses the connection as a byte stream.
pub(super) const STREAM: u16 = 1;
/// The feature bit of a side that accepts several messages in one frame.
pub(super) const BATCHES: u16 = 2;
/// The feature bit of a side whose device supports atomic operations.
pub(super) const ATOMIC: u16 = 4;
/// The feature bit of a side whose device supports writes with immediate data.
pub(super) const WRITE_WITH_IMM: u16 = 8;
/// The feature bit of a side that supports sessions, which outlive their connections.
pub(super) const SESSION: u16 = 16;
/// The feature bit of a request that resumes a session.
pub(super) const RESUMES: u16 = 32;
/// The feature bit of a side that accepts a message in several frames.
pub(super) const FRAGMENTS: u16 = 64;
/// The feature bit of a side that accepts control messages.
pub(super) const CONTROL_MESSAGES: u16 = 128;
/// The feature bit of a request whose private data follow in a separate frame. The reply to such a
/// request has the same bit.
pub(super) const LONG_REQUEST: u16 = 256;
/// The length in bytes of a hello without the application's bytes.
const LEN: usize = 36;

/// The maximum number of bytes that the application can send after the hello in a connect request.
pub const REQUEST_DATA_MAX: usize = 56 - LEN;
/// The maximum length in bytes of private data in a request. Private data that do not fit after the
/// hello are sent in a separate frame.
pub const PRIVATE_DATA_MAX: usize = 4096;
/// The maximum number of bytes that the application can send after the hello in a reply.
pub const REPLY_DATA_MAX: usize = 196 - LEN;

/// The parameters that each side sends in the private data of its connect request or reply.
///
/// On the wire, in network byte order: magic `u32`, version `u8`, total length in bytes `u8`,
/// features `u16`, receive window `u16`, initial credits `u16`, eager size `u32`, maximum message
/// length `u64`, keepalive interval `u32` (ms, 0 = none), engine `u64`, the application's bytes.
/// The hello includes its length because the connection manager pads private data with zeros. All
/// versions of the protocol have magic and version at the same offsets, and use the same format for
/// a [rejection](super::reject::Reject). If the versions of two sides differ, each side can
/// therefore report both versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Hello {
    pub version: u8,
    /// The sender's optional features, one bit each. The receiver ignores unknown bits.
    pub features: u16,
    pub window: u16,
    /// The number of data frames that the peer may send before the first grant. 0 means the whole
    /// `window`.
    pub credits: u16,
    pub eager_size: u32,
    pub max_message: u64,
    pub keepalive_ms: u32,
    /// A random number that identifies the sender's engine. A sign of life on one connection is a
    /// sign of life for all connections to the same engine.
    pub engine: u64,
}

/// The reason why private data are not a hello of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelloError {
    /// The private data do not have the format of this protocol.
    NotRdmsg,
    /// The private data have the format of librdmacm's rsockets.
    Rsocket,
    /// The hello has this protocol version instead of [`VERSION`].
    Version(u8),
}

impl Hello {
    /// Returns the operations that the sender's device supports.
    pub(super) fn capabilities(&self) -> Capabilities {
        Capabilities {
            atomic: self.features & ATOMIC != 0,
            write_with_imm: self.features & WRITE_WITH_IMM != 0,
        }
    }

    /// Serializes the hello, followed by the application's bytes.
    pub(crate) fn emit(&self, data: &[u8]) -> PrivateBytes {
        //= PROTOCOL.md#hello
        //# | 0 | 4 | magic | `rdms` (0x72646d73) |
        //# | 4 | 1 | version | 3 |
        //# | 5 | 1 | length | bytes of the hello and the application's data: at least 36 |
        //# | 6 | 2 | features | bits, see below; unknown ones are ignored |
        //# | 8 | 2 | window | data frames for which the sender has receives at most; not 0 |
        //# | 10 | 2 | credits | those allowed before the first grant; 0 means all of `window` |
        //# | 12 | 4 | eager size | bytes of the longest payload of a data frame; not 0 |
        //# | 16 | 8 | largest message | bytes of the longest message; not 0 |
        //# | 24 | 4 | keepalive | the probing interval in milliseconds; 0: no probes |
        //# | 28 | 8 | engine | a random number that identifies the sender's [engine](#keepalive) |
        let mut out = PrivateBytes::new();
        out.put(&MAGIC.to_be_bytes());
        out.put(&[self.version, (LEN + data.len()) as u8]);
        out.put(&self.features.to_be_bytes());
        out.put(&self.window.to_be_bytes());
        out.put(&self.credits.to_be_bytes());
        out.put(&self.eager_size.to_be_bytes());
        out.put(&self.max_message.to_be_bytes());
        out.put(&self.keepalive_ms.to_be_bytes());
        out.put(&self.engine.to_be_bytes());
        out.put(data);
        out
    }

    /// Parses a hello. Returns the hello and the application's bytes that follow it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), HelloError> {
        let mut reader = Reader(bytes);
        let mut header = || Some((reader.u32()?, reader.u8()?, reader.u8()?));
        let (MAGIC, version, len) = header().ok_or(HelloError::NotRdmsg)? else {
            return Err(if is_rsocket(bytes) {
                HelloError::Rsocket
            } else {
                HelloError::NotRdmsg
            });
        };
        if version != VERSION {
            return Err(HelloError::Version(version));
        }
        let len = usize::from(len);
        if len < LEN || len > bytes.len() {
            return Err(HelloError::NotRdmsg);
        }
        let mut fields = || {
            let (features, window, credits) = (reader.u16()?, reader.u16()?, reader.u16()?);
            Some(Self {
                version,
                features,
                window,
                credits,
                eager_size: reader.u32()?,
                max_message: reader.u64()?,
                keepalive_ms: reader.u32()?,
                engine: reader.u64()?,
            })
        };
        let hello = fields().ok_or(HelloError::NotRdmsg)?;
        Ok((hello, &bytes[LEN..len]))
    }
}

/// Returns true if `bytes` are the private data of an rsocket: version 1, the required flag for
/// mapped memory, no unknown flags, and a table of two windows. The crate `rdmsg-rsocket`
/// implements the rsockets protocol.
pub(super) fn is_rsocket(bytes: &[u8]) -> bool {
    let Some([1, flags, _, _, 0, 0, 0, rest @ ..]) = bytes.first_chunk::<40>() else {
        return false;
    };
    let windows = &rest[13..17];
    flags & !1 == 2 && windows == [0, 0, 0, 2]
}

/// The private data of a connection manager message.
///
/// The bytes are on the heap, so that an [`Output`](super::Output) is small. The library moves
/// `Output` values for every message. The bytes are never logged, because they can contain the
/// secret identity of a session.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct PrivateBytes(Vec<u8>);

impl PrivateBytes {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends bytes. The caller ensures that the total length fits into the connection manager's
    /// message.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl From<&[u8]> for PrivateBytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Deref for PrivateBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PrivateBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Reads big-endian fields from the front of private data.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::cases;

    const HELLO: Hello = Hello {
        version: VERSION,
        features: 0,
        window: 64,
        credits: 2,
        eager_size: 16384,
        max_message: 1 << 30,
        keepalive_ms: 2000,
        engine: 0x0102_0304_0506_0708,
    };

    #[test]
    fn a_hello_lies_on_the_wire_as_documented() {
        let hello = Hello {
            version: VERSION,
            features: 0x0102,
            window: 0x1112,
            credits: 0x2122,
            eager_size: 0x3132_3334,
            max_message: 0x4142_4344_4546_4748,
            keepalive_ms: 0x5152_5354,
            engine: 0x6162_6364_6566_6768,
        };
        let bytes = b"rdms\x03\x28\x01\x02\x11\x12\x21\x22\x31\x32\x33\x34\
            \x41\x42\x43\x44\x45\x46\x47\x48\x51\x52\x53\x54\
            \x61\x62\x63\x64\x65\x66\x67\x68user";
        assert_eq!(*hello.emit(b"user"), *bytes);
        assert_eq!(Hello::parse(bytes), Ok((hello, &b"user"[..])));
    }

    #[test]
    fn hello_round_trips_through_padding() {
        let mut padded = HELLO.emit(b"user").to_vec();
        assert_eq!(padded.len(), 40);
        padded.resize(56, 0);
        assert_eq!(Hello::parse(&padded), Ok((HELLO, &b"user"[..])));
    }

    #[test]
    fn foreign_bytes_differ_from_another_version() {
        assert_eq!(Hello::parse(b""), Err(HelloError::NotRdmsg));
        assert_eq!(Hello::parse(&[0; 56]), Err(HelloError::NotRdmsg));
        let mut other = HELLO.emit(b"").to_vec();
        other[4] = 9;
        assert_eq!(Hello::parse(&other), Err(HelloError::Version(9)));
        other[4] = VERSION;
        other[5] = 60;
        assert_eq!(
            Hello::parse(&other),
            Err(HelloError::NotRdmsg),
            "the length must not exceed the private data"
        );
        other[5] = 35;
        assert_eq!(
            Hello::parse(&other),
            Err(HelloError::NotRdmsg),
            "the length must be at least 36"
        );
    }

    #[test]
    fn rsocket_is_distinguished_from_other_protocols() {
        let mut data = [0; 56];
        data[..4].copy_from_slice(&[1, 2, 1, 0x80]);
        data[23] = 2;
        assert_eq!(Hello::parse(&data), Err(HelloError::Rsocket));
        data[1] = 3;
        assert_eq!(Hello::parse(&data[..40]), Err(HelloError::Rsocket));
        assert_eq!(Hello::parse(&data[..39]), Err(HelloError::NotRdmsg));
        for (at, other) in [(0, 2), (1, 0), (1, 6), (4, 1), (6, 1), (20, 1), (23, 3)] {
            let mut wrong = data;
            wrong[at] = other;
            assert_eq!(Hello::parse(&wrong), Err(HelloError::NotRdmsg), "{at}");
        }
    }

    #[test]
    fn the_largest_private_data_fit() {
        assert_eq!(HELLO.emit(&[1; REQUEST_DATA_MAX]).len(), 56);
        assert_eq!(HELLO.emit(&[1; REPLY_DATA_MAX]).len(), 196);
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = Hello::parse(&bytes);
            let mut hello = HELLO.emit(b"").to_vec();
            for (at, byte) in bytes.iter().enumerate().take(hello.len() - 5) {
                hello[at + 5] = *byte;
            }
            let _ = Hello::parse(&hello);
        }
    }
}
