use super::{
    SessionOver,
    hello::{PrivateBytes, Reader},
};

/// The first bytes of a rejection, in ASCII: `rdmR`.
const MAGIC: u32 = 0x7264_6d52;
/// The length in bytes of a rejection without the application's bytes.
const LEN: usize = 24;

/// The maximum number of bytes that the application can send in a rejection.
pub const REJECT_DATA_MAX: usize = 148 - LEN;

/// The cause of a rejection. The discriminant of a variant is its code on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RejectCode {
    /// The application rejected the request.
    Application = 0,
    /// The protocol versions differ.
    Version = 1,
    /// The receive window in the request is 0.
    Window = 2,
    /// The eager size in the request is 0, or too small for an Answer frame.
    EagerSize = 3,
    /// The maximum message length in the request is 0.
    MaxMessage = 4,
    /// The rejecting side lacks memory or another resource for the connection.
    Resources = 5,
    /// The rejected side does not permit READs from the rejected side's memory.
    ResponderResources = 6,
    /// The rejected side cannot issue READs.
    InitiatorDepth = 7,
    /// Too many requests wait at the rejecting side, its application did not answer in time, or its
    /// listener is being closed.
    Busy = 8,
    /// One side's application uses the connection as a byte stream, and the other side's
    /// application does not.
    Stream = 9,
    /// The request resumes a session that the rejecting side does not know.
    Session = 10,
    /// The request resumes a session that the rejecting side has closed.
    Over = 11,
}

impl RejectCode {
    /// All codes, in the order of their numbers.
    pub(super) const ALL: [Self; 12] = [
        Self::Application,
        Self::Version,
        Self::Window,
        Self::EagerSize,
        Self::MaxMessage,
        Self::Resources,
        Self::ResponderResources,
        Self::InitiatorDepth,
        Self::Busy,
        Self::Stream,
        Self::Session,
        Self::Over,
    ];

    fn parse(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as u16 == number)
    }

    /// Returns the name of the field or the condition that caused the rejection, for error
    /// messages.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Version => "version",
            Self::Window => "receive_window",
            Self::EagerSize => "eager_size",
            Self::MaxMessage => "max_message",
            Self::Resources => "resources",
            Self::ResponderResources => "responder_resources",
            Self::InitiatorDepth => "initiator_depth",
            Self::Busy => "busy",
            Self::Stream => "stream",
            Self::Session => "session",
            Self::Over => "over",
        }
    }
}

/// The private data of a rejection.
///
/// On the wire, in network order: magic `u32`, version `u8`, total length in bytes `u8`, code
/// `u16`, the rejecting side's value `u64`, the rejected side's value `u64`, the application's
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The cause of the rejection.
    pub code: RejectCode,
    /// The rejecting side's value of the field that `code` names, or 0. With the code
    /// [`Over`](RejectCode::Over), this is the number of messages that the rejecting side has
    /// received.
    pub own: u64,
    /// The rejected side's value of the field that `code` names, or 0. With the code
    /// [`Over`](RejectCode::Over), this is the number of messages that the rejecting side has sent.
    pub theirs: u64,
}

impl Reject {
    /// The rejection with the code [`Busy`](RejectCode::Busy).
    pub const BUSY: Self = Self {
        code: RejectCode::Busy,
        own: 0,
        theirs: 0,
    };

    /// The rejection of a request to resume a session that this side does not know.
    pub const SESSION: Self = Self {
        code: RejectCode::Session,
        own: 0,
        theirs: 0,
    };

    /// Returns the rejection of a request to resume a session that this side has closed.
    pub fn over(over: SessionOver) -> Self {
        //= PROTOCOL.md#sessions
        //# The rejection has the numbers of messages that the passive side has received (`own`) and
        //# sent (`theirs`) in all.
        Self {
            code: RejectCode::Over,
            own: over.received.into(),
            theirs: over.sent.into(),
        }
    }

    /// If this rejection states that the peer has closed the session, returns the message counts of
    /// the session.
    pub(super) fn session_over(&self) -> Option<SessionOver> {
        let is_over = self.code == RejectCode::Over;
        is_over.then_some(SessionOver {
            received: self.own as u32,
            sent: self.theirs as u32,
        })
    }

    /// Serializes the rejection, followed by the application's bytes.
    pub fn emit(&self, data: &[u8]) -> PrivateBytes {
        //= PROTOCOL.md#rejection
        //# | 0 | 4 | magic | `rdmR` (0x72646d52) |
        //# | 4 | 1 | version | 3: the rejecting side's; the receiver ignores it |
        //# | 5 | 1 | length | bytes of the rejection and the application's data: at least 24 |
        //# | 6 | 2 | code | see below |
        //# | 8 | 8 | own | the rejecting side's value of the field that the code names, or 0 |
        //# | 16 | 8 | theirs | the rejected side's value of it, or 0 |
        let mut out = PrivateBytes::new();
        out.put(&MAGIC.to_be_bytes());
        out.put(&[super::hello::VERSION, (LEN + data.len()) as u8]);
        out.put(&(self.code as u16).to_be_bytes());
        out.put(&self.own.to_be_bytes());
        out.put(&self.theirs.to_be_bytes());
        out.put(data);
        out
    }

    /// Parses a rejection, which has the same layout in all protocol versions. Returns the
    /// rejection and the application's bytes. Returns `None` if the bytes are not a rejection of
    /// this protocol, or if the code is unknown.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut reader = Reader(bytes);
        let (magic, _version, len, code) = (
            reader.u32()?,
            reader.u8()?,
            usize::from(reader.u8()?),
            reader.u16()?,
        );
        if magic != MAGIC || len < LEN || len > bytes.len() {
            return None;
        }
        let code = RejectCode::parse(code)?;
        let (own, theirs) = (reader.u64()?, reader.u64()?);
        Some((Self { code, own, theirs }, &bytes[LEN..len]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::cases;

    #[test]
    fn a_rejection_lies_on_the_wire_as_documented() {
        for (number, code) in [
            (0, RejectCode::Application),
            (1, RejectCode::Version),
            (2, RejectCode::Window),
            (3, RejectCode::EagerSize),
            (4, RejectCode::MaxMessage),
            (5, RejectCode::Resources),
            (6, RejectCode::ResponderResources),
            (7, RejectCode::InitiatorDepth),
            (8, RejectCode::Busy),
            (9, RejectCode::Stream),
            (10, RejectCode::Session),
            (11, RejectCode::Over),
        ] {
            let reject = Reject {
                code,
                own: 0x1112_1314_1516_1718,
                theirs: 0x2122_2324_2526_2728,
            };
            let bytes = [
                &b"rdmR\x03\x1b\0"[..],
                &[number],
                b"\x11\x12\x13\x14\x15\x16\x17\x18\x21\x22\x23\x24\x25\x26\x27\x28why",
            ]
            .concat();
            assert_eq!(*reject.emit(b"why"), *bytes);
            assert_eq!(Reject::parse(&bytes), Some((reject, &b"why"[..])));
        }
    }

    #[test]
    fn rejection_round_trips_through_padding() {
        let reject = Reject {
            code: RejectCode::Version,
            own: 1,
            theirs: 2,
        };
        let mut padded = reject.emit(b"why").to_vec();
        padded.resize(148, 0);
        assert_eq!(Reject::parse(&padded), Some((reject, &b"why"[..])));
        assert_eq!(reject.emit(&[0; REJECT_DATA_MAX]).len(), 148);
        assert_eq!(Reject::parse(b"GET / HTTP/1.1"), None);
        padded[7] = 99;
        assert_eq!(
            Reject::parse(&padded),
            None,
            "the unknown code must be refused"
        );
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = Reject::parse(&bytes);
            let reject = Reject { code: RejectCode::Window, own: 1, theirs: 2 };
            let mut framed = reject.emit(b"").to_vec();
            for (at, byte) in bytes.iter().enumerate().take(framed.len() - 5) {
                framed[at + 5] = *byte;
            }
            let _ = Reject::parse(&framed);
        }
    }
}
