use super::{
    control_messages::MAX_CONTROL_MESSAGE,
    hello::{PRIVATE_DATA_MAX, REPLY_DATA_MAX},
    reason::Violation,
    reject::REJECT_DATA_MAX,
};

/// The length in bytes of the header before each frame's payload.
pub const HEADER_LEN: usize = 16;

/// The kind of a frame. The first byte of a frame is the [`number`](Self::number) of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Kind {
    /// Carries one message of the application, and consumes one credit.
    Data,
    /// Announces one large message of the application, and consumes one credit. The payload is a
    /// [`Descriptor`] of the memory from which the receiver of the frame reads the message.
    Rendezvous,
    /// Carries several messages of the application, and consumes one credit for each message: see
    /// [`Batch`](super::batch::Batch).
    Batch,
    /// Carries a part of one message of the application, and consumes one credit.
    Fragment,
    /// Carries one control message of the application, and consumes a separate credit: see
    /// [`ControlMessages`](super::control_messages::ControlMessages). `arg` is the message's
    /// number.
    ControlMessage,
    /// Carries private data of the active side that do not fit into its connect request.
    Request,
    /// Carries the passive side's answer to a Request, together with that side's private data.
    /// `arg` is the number of an [`Answer`].
    Answer,
    /// Carries no message, has no payload, and consumes no credit.
    Control(Control),
}

/// The kind of a control frame. Control frames have no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Control {
    /// Carries only the counters in its header.
    Grant,
    /// Asks for a Pong.
    Ping,
    /// Answers a Ping. The sender of the Pong has processed all frames that were sent before the
    /// Ping.
    Pong,
    /// Announces that the sender will send only control frames after this frame.
    Close,
    /// Ends the connection immediately. `arg` is the application's code.
    Abort,
    /// Acknowledges the peer's Close. The sender of the CloseAck has received everything that the
    /// peer sent before the Close.
    CloseAck,
    /// Ends the connection immediately, because the sender's library cannot continue. `arg` is a
    /// code for the cause, such as [`OUT_OF_RESOURCES`].
    Failure,
    /// Half-closes the connection. The sender sends no more messages except control messages, and
    /// continues to receive.
    Finish,
    /// Permits further control messages. `arg` is the total number of control messages permitted.
    Permit,
    /// Asks for a Pong, and reports that the sender wants to end the connection soon.
    Leave,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub(super) const ALL: [Self; 17] = [
        Self::Data,
        Self::Control(Control::Grant),
        Self::Control(Control::Ping),
        Self::Control(Control::Pong),
        Self::Control(Control::Close),
        Self::Control(Control::Abort),
        Self::Control(Control::CloseAck),
        Self::Control(Control::Failure),
        Self::Control(Control::Finish),
        Self::ControlMessage,
        Self::Control(Control::Permit),
        Self::Control(Control::Leave),
        Self::Request,
        Self::Answer,
        Self::Rendezvous,
        Self::Batch,
        Self::Fragment,
    ];

    /// Returns the number that identifies this kind in a frame.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Control(Control::Grant) => 2,
            Self::Control(Control::Ping) => 3,
            Self::Control(Control::Pong) => 4,
            Self::Control(Control::Close) => 5,
            Self::Control(Control::Abort) => 6,
            Self::Control(Control::CloseAck) => 7,
            Self::Control(Control::Failure) => 8,
            Self::Control(Control::Finish) => 9,
            Self::ControlMessage => 10,
            Self::Control(Control::Permit) => 11,
            Self::Control(Control::Leave) => 12,
            Self::Request => 13,
            Self::Answer => 14,
            Self::Rendezvous => 16,
            Self::Batch => 17,
            Self::Fragment => 18,
        }
    }

    fn parse(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Returns the violation to report if a frame of this kind is not allowed in the connection's
    /// current state. `expected` describes the allowed behaviour.
    pub(super) fn unexpected(self, expected: &'static str) -> Violation {
        Violation::new("kind", self.number().into(), expected)
    }
}

/// The first two bytes of a Data frame: kind and flags.
const DATA: [u8; 2] = [Kind::Data.number(), 0];

/// The `arg` of a Failure: for longer than `read_timeout`, the sender had no memory for the peer's
/// large messages. Further codes follow below, and later versions can add more.
pub(crate) const OUT_OF_RESOURCES: u32 = 1;

/// The `arg` of a Failure: a waker of the sender's program panicked.
pub(crate) const WAKER_PANICKED: u32 = 2;

/// The `arg` of a Failure: the sender's listener ended before the sender's program accepted the
/// connection. The program has received no message on this connection.
pub(crate) const NOT_TAKEN: u32 = 3;

/// The `arg` of a Failure: the sender received no sign of life from its peer within
/// `keepalive_timeout`.
pub(crate) const KEEPALIVE_TIMEOUT: u32 = 4;

/// The `arg` of a Failure: the sender received too few bytes of its peer's large messages within
/// `read_timeout`.
pub(crate) const READ_TIMEOUT: u32 = 5;

/// The answer of the passive side's application to a Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted,
    Rejected,
}

impl Answer {
    /// Returns the number that identifies this answer in a frame.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Accepted => 0,
            Self::Rejected => 1,
        }
    }

    pub(crate) fn parse(number: u32) -> Result<Self, Violation> {
        [Self::Accepted, Self::Rejected]
            .into_iter()
            .find(|answer| answer.number() == number)
            .ok_or_else(|| Violation::new("answer", number.into(), "0 or 1"))
    }
}

/// A frame's header.
///
/// On the wire, in network byte order: kind `u8`, flags `u8` = 0, sequence `u16`, grant `u32`, len
/// `u32`, arg `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Header {
    pub kind: Kind,
    /// The number of frames that the sender sent before this one, modulo 2¹⁶.
    pub sequence: u16,
    /// The credit limit, modulo 2³²: the total number of data frames that the receiver of this
    /// frame may send, counted from the start of the connection.
    pub grant: u32,
    /// The length in bytes of the payload. In a Fragment: the number of bytes from the start of the
    /// payload to the end of the whole message.
    pub len: u32,
    /// A value whose meaning depends on the kind of the frame:
    ///
    /// - Abort: the application's code
    /// - Failure: the code of the cause
    /// - Answer: the number of an [`Answer`]
    /// - ControlMessage: the number of the message
    /// - Permit: the total number of control messages permitted
    /// - other kinds: the number of large messages that the frame's sender has read, modulo 2³²
    pub arg: u32,
}

/// The length in bytes of a [`Descriptor`] on the wire.
pub(crate) const DESCRIPTOR_LEN: usize = 24;

/// The location of a large message in its sender's memory.
///
/// On the wire, in network byte order: address `u64`, length `u64`, rkey `u32`, reserved `u32` = 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Descriptor {
    /// The address of the message's first byte.
    pub addr: u64,
    /// The message's length in bytes.
    pub len: u64,
    /// The remote key (rkey) with which the message's receiver reads the message.
    pub rkey: u32,
}

impl Descriptor {
    /// Serializes the descriptor.
    pub fn emit(&self) -> [u8; DESCRIPTOR_LEN] {
        //= PROTOCOL.md#frames
        //# | 0 | 8 | address | of the message in its sender's memory |
        //# | 8 | 8 | length | its length in bytes: at least 1; `address` + `length` is an address |
        //# | 16 | 4 | rkey | the key with which the receiver of this frame reads it |
        //# | 20 | 4 | reserved | 0 |
        let mut bytes = [0; DESCRIPTOR_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Parses the descriptor in a Rendezvous frame, which `Header::parse` has already accepted.
    pub fn parse(frame: &[u8]) -> Result<Self, Violation> {
        let Some((bytes, [])) = frame
            .get(HEADER_LEN..)
            .and_then(|payload| payload.split_first_chunk::<DESCRIPTOR_LEN>())
        else {
            return Err(Violation::new(
                "len",
                frame.len().saturating_sub(HEADER_LEN) as u64,
                "24 in a rendezvous",
            ));
        };
        let long = |at: usize| u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4));
        let reserved = word(bytes, 20);
        if reserved != 0 {
            return Err(Violation::new("descriptor reserved", reserved.into(), "0"));
        }
        let descriptor = Self {
            addr: long(0),
            len: long(8),
            rkey: word(bytes, 16),
        };
        if descriptor.len == 0 || descriptor.addr.checked_add(descriptor.len).is_none() {
            return Err(Violation::new(
                "descriptor len",
                descriptor.len,
                "at least 1, with the message inside the address space",
            ));
        }
        Ok(descriptor)
    }
}

impl Header {
    /// Returns the number of large messages that the sender of this frame has read, or `None` if
    /// `arg` has another meaning in this kind of frame.
    #[inline]
    pub(crate) fn taken(&self) -> Option<u32> {
        match self.kind {
            Kind::ControlMessage
            | Kind::Answer
            | Kind::Control(Control::Abort | Control::Failure | Control::Permit) => None,
            Kind::Data
            | Kind::Rendezvous
            | Kind::Batch
            | Kind::Fragment
            | Kind::Request
            | Kind::Control(
                Control::Grant
                | Control::Ping
                | Control::Pong
                | Control::Close
                | Control::CloseAck
                | Control::Finish
                | Control::Leave,
            ) => Some(self.arg),
        }
    }

    #[inline(always)]
    pub(crate) fn emit(&self) -> [u8; HEADER_LEN] {
        //= PROTOCOL.md#frames
        //# | 0 | 1 | kind | see below |
        //# | 1 | 1 | flags | 0 |
        //# | 2 | 2 | sequence | number of frames sent before this one, modulo 2¹⁶ |
        //# | 4 | 4 | grant | total of [data frames](#credits) that the receiver may have sent |
        //# | 8 | 4 | length | bytes of payload behind the header; Fragment: more, see below |
        //# | 12 | 4 | argument | a code, a control message's number, or *taken*: see below |
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind.number();
        bytes[2..4].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.grant.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.arg.to_be_bytes());
        bytes
    }

    /// Parses the header of a Data frame. Returns `None` if the frame is malformed or has another
    /// kind.
    #[inline]
    pub(crate) fn parse_data(frame: &[u8]) -> Option<Self> {
        let (header, payload) = frame.split_first_chunk::<HEADER_LEN>()?;
        let parsed = Self {
            kind: Kind::Data,
            sequence: u16::from_be_bytes([header[2], header[3]]),
            grant: word(header, 4),
            len: word(header, 8),
            arg: word(header, 12),
        };
        (header[..2] == DATA && parsed.len as usize == payload.len()).then_some(parsed)
    }

    /// Parses the header of a frame. Checks all rules that do not depend on the connection's state.
    pub(crate) fn parse(frame: &[u8]) -> Result<Self, Violation> {
        let Some((header, payload)) = frame.split_first_chunk::<HEADER_LEN>() else {
            return Err(Violation::new(
                "frame length",
                frame.len() as u64,
                "at least 16 bytes",
            ));
        };
        let kind = Kind::parse(header[0])
            .ok_or_else(|| Violation::new("kind", header[0].into(), "a known kind"))?;
        if header[1] != 0 {
            return Err(Violation::new("flags", header[1].into(), "0"));
        }
        let parsed = Self {
            kind,
            sequence: u16::from_be_bytes([header[2], header[3]]),
            grant: word(header, 4),
            len: word(header, 8),
            arg: word(header, 12),
        };
        let (received, len) = (payload.len(), parsed.len as usize);
        let (fits, expected) = match kind {
            Kind::Fragment => (
                (1..=len).contains(&received),
                "at least the length of the received payload, which must not be 0",
            ),
            _ if len != received => (false, "the length of the received payload"),
            Kind::Data | Kind::Batch => (true, ""),
            Kind::Rendezvous => (payload.len() == DESCRIPTOR_LEN, "24 in a rendezvous"),
            Kind::ControlMessage => (
                parsed.len <= MAX_CONTROL_MESSAGE,
                "at most 256 in a control message",
            ),
            Kind::Request => (len <= PRIVATE_DATA_MAX, "at most 4096 in a request"),
            Kind::Answer if parsed.arg == Answer::Rejected.number() => {
                (len <= REJECT_DATA_MAX, "at most 124 in a rejection")
            }
            Kind::Answer => (len <= REPLY_DATA_MAX, "at most 160 in an answer"),
            Kind::Control(_) => (payload.is_empty(), "0 in a control frame"),
        };
        if !fits {
            return Err(Violation::new("len", parsed.len.into(), expected));
        }
        Ok(parsed)
    }
}

/// If `frame` begins with the header of a Fragment frame, returns the number of bytes from the
/// start of the payload to the end of the message. Checks no other field.
#[inline]
pub fn rest_of_message(frame: &[u8]) -> Option<u32> {
    let header = frame.first_chunk::<HEADER_LEN>()?;
    (header[0] == Kind::Fragment.number()).then(|| word(header, 8))
}

/// Returns the big-endian 32-bit field at offset `at`.
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The sequence number of the next frame in each direction, modulo 2¹⁶.
///
/// A reliable connection neither loses nor repeats frames. If a faulty device or driver loses or
/// repeats a frame, the sequence numbers reveal the fault, and the connection ends. Without
/// sequence numbers, a repeated message would be delivered twice.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Sequence {
    send: u16,
    receive: u16,
}

impl Sequence {
    /// Creates the sequence numbers of a new connection. Both directions begin at `start`, which is
    /// 0 except in tests.
    pub(super) const fn new(start: u16) -> Self {
        Self {
            send: start,
            receive: start,
        }
    }

    /// Returns the sequence number for the next frame to send, and increments the counter.
    #[inline]
    pub(super) fn send(&mut self) -> u16 {
        let number = self.send;
        self.send = number.wrapping_add(1);
        number
    }

    /// Returns whether `number` is the sequence number that the next frame from the peer must have.
    #[inline]
    pub(super) const fn is_next(&self, number: u16) -> bool {
        number == self.receive
    }

    /// Counts a received frame. Returns an error if `number` is not the next sequence number.
    #[inline]
    pub(super) fn receive(&mut self, number: u16) -> Result<(), Violation> {
        //= PROTOCOL.md#violations
        //# | `sequence` | is one higher than in the previous frame: no frame was lost or repeated |
        if !self.is_next(number) {
            return Err(Violation::new(
                "sequence",
                number.into(),
                "the number after that of the previous frame",
            ));
        }
        self.receive = number.wrapping_add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::cases;

    fn kind() -> impl Strategy<Value = Kind> {
        prop::sample::select(&Kind::ALL)
    }

    #[test]
    fn each_frame_lies_on_the_wire_as_documented() {
        let control = b"\0\x0a\x0b\x01\x02\x03\x04\0\0\0\0\x05\x06\x07\x08";
        let data = b"\0\x0a\x0b\x01\x02\x03\x04\0\0\0\x05\x05\x06\x07\x08hello";
        let rendezvous = b"\0\x0a\x0b\x01\x02\x03\x04\0\0\0\x18\x05\x06\x07\x08\
            \x11\x12\x13\x14\x15\x16\x17\x18\x21\x22\x23\x24\x25\x26\x27\x28\
            \x31\x32\x33\x34\0\0\0\0";
        let descriptor = Descriptor {
            addr: 0x1112_1314_1516_1718,
            len: 0x2122_2324_2526_2728,
            rkey: 0x3132_3334,
        };
        for (kind, number, rest) in [
            (Kind::Data, 1, &data[..]),
            (Kind::Control(Control::Grant), 2, control),
            (Kind::Control(Control::Ping), 3, control),
            (Kind::Control(Control::Pong), 4, control),
            (Kind::Control(Control::Close), 5, control),
            (Kind::Control(Control::Abort), 6, control),
            (Kind::Control(Control::CloseAck), 7, control),
            (Kind::Control(Control::Failure), 8, control),
            (Kind::Control(Control::Finish), 9, control),
            (Kind::ControlMessage, 10, data),
            (Kind::Control(Control::Permit), 11, control),
            (Kind::Control(Control::Leave), 12, control),
            (Kind::Request, 13, data),
            (Kind::Answer, 14, data),
            (Kind::Rendezvous, 16, rendezvous),
            (Kind::Batch, 17, &data[..]),
            (Kind::Fragment, 18, &data[..]),
        ] {
            let payload = match kind {
                Kind::Data
                | Kind::Batch
                | Kind::Fragment
                | Kind::ControlMessage
                | Kind::Request
                | Kind::Answer => b"hello".to_vec(),
                Kind::Rendezvous => descriptor.emit().to_vec(),
                Kind::Control(_) => Vec::new(),
            };
            let header = Header {
                kind,
                sequence: 0x0a0b,
                grant: 0x0102_0304,
                len: payload.len() as u32,
                arg: 0x0506_0708,
            };
            let frame = [&[number], rest].concat();
            assert_eq!([&header.emit()[..], &payload].concat(), frame, "{kind:?}");
            assert_eq!(Header::parse(&frame), Ok(header));
            let message = (kind == Kind::Data).then_some(header);
            assert_eq!(Header::parse_data(&frame), message, "{kind:?}");
            if kind == Kind::Rendezvous {
                assert_eq!(Descriptor::parse(&frame), Ok(descriptor));
            }
        }
    }

    #[test]
    fn other_numbers_are_unknown() {
        for number in [0, 15, 19, 255] {
            let mut frame = [0; HEADER_LEN];
            frame[0] = number;
            assert_eq!(Header::parse(&frame).unwrap_err().field(), "kind");
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn frame_round_trips(
            kind in kind(),
            sequence in any::<u16>(),
            grant in any::<u32>(),
            arg in any::<u32>(),
            data in prop::collection::vec(any::<u8>(), 0..40),
            more in 0..9_u32,
            addr in any::<u32>(),
            len in 1..u64::from(u32::MAX),
        ) {
            let descriptor = Descriptor { addr: addr.into(), len, rkey: arg };
            let payload = match kind {
                Kind::Data
                | Kind::Batch
                | Kind::ControlMessage
                | Kind::Request
                | Kind::Answer => data,
                Kind::Fragment => [&data[..], b"x"].concat(),
                Kind::Rendezvous => descriptor.emit().to_vec(),
                Kind::Control(_) => Vec::new(),
            };
            let more = if kind == Kind::Fragment { more } else { 0 };
            let header = Header { kind, sequence, grant, len: payload.len() as u32 + more, arg };
            let frame = [&header.emit()[..], &payload].concat();
            prop_assert_eq!(Header::parse(&frame), Ok(header));
            // A truncated Fragment is still valid if at least one byte of payload remains.
            let is_cut = Header::parse(&frame[..frame.len() - 1]).is_err();
            prop_assert!(is_cut || (kind == Kind::Fragment && payload.len() > 1));
            if kind == Kind::Fragment {
                prop_assert!(Header::parse(&frame[..HEADER_LEN]).is_err(), "no Fragment is empty");
                let longer = [&frame[..], &[0; 9]].concat();
                prop_assert!(Header::parse(&longer).is_err(), "no payload exceeds its message");
            }
            if kind == Kind::Rendezvous {
                prop_assert_eq!(Descriptor::parse(&frame), Ok(descriptor));
            }
        }

        #[test]
        fn parsed_frame_encodes_to_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert_eq!(&header.emit()[..], &bytes[..HEADER_LEN]);
            }
            if let Ok(descriptor) = Descriptor::parse(&bytes) {
                prop_assert_eq!(&descriptor.emit()[..], &bytes[HEADER_LEN..]);
            }
        }
    }

    #[test]
    fn numbers_follow_each_other_around_the_wrap() {
        let mut sequence = Sequence::new(u16::MAX - 1);
        for number in [u16::MAX - 1, u16::MAX, 0, 1] {
            assert_eq!(sequence.send(), number);
            assert_eq!(sequence.receive(number), Ok(()));
        }
    }

    #[test]
    fn a_repeated_and_a_lost_frame_are_violations() {
        let mut sequence = Sequence::new(0);
        assert_eq!(sequence.receive(0), Ok(()));
        for number in [0, 2, u16::MAX] {
            assert_eq!(sequence.receive(number).unwrap_err().field(), "sequence");
        }
        assert_eq!(sequence.receive(1), Ok(()), "a violation is not counted");
    }
}
