//! The PDUs that two queue pairs in user space exchange on a TCP connection after the setup. See
//! "Over TCP" in PROTOCOL.md.

use crate::Violation;

/// The length in bytes of the fields before the arguments of a PDU: kind, flags, two reserved
/// bytes, and the total length of arguments and payload.
pub const PREFIX: usize = 8;
/// An upper bound on the length in bytes of a PDU's arguments.
const LONGEST_ARGUMENTS: usize = 32;
/// An upper bound on the length in bytes of a PDU's header: prefix and arguments.
pub const LONGEST_HEADER: usize = PREFIX + LONGEST_ARGUMENTS;
/// The maximum length in bytes of the payload of a PDU that belongs to a write, or to the answer to
/// a READ. A longer write or answer is sent in several parts, and other PDUs can be sent between
/// two parts.
pub const LONGEST_PART: u32 = 256 << 10;

/// The flag of a request that the receiver must acknowledge.
const SIGNALLED: u8 = 1;
/// The flag of the last part of a write, or of the last part of the answer to a READ.
const LAST: u8 = 2;

/// The header of a PDU. The header is followed by [`payload`](Self::payload) bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// A frame, which consumes the receiver's next posted receive.
    Send { signalled: bool, len: u32 },
    /// A part of a write.
    Write {
        signalled: bool,
        last: bool,
        at: RemoteSpan,
    },
    /// The last part of a write with immediate data, which consumes a posted receive.
    WriteWithImm {
        signalled: bool,
        at: RemoteSpan,
        imm_data: u32,
    },
    /// Requests bytes from the memory of the receiver of this PDU.
    Read { at: RemoteSpan },
    /// Requests an atomic operation on eight bytes in the memory of the receiver of this PDU.
    Atomic {
        addr: u64,
        rkey: u32,
        change: Change,
    },
    /// Acknowledges all requests up to and including number `requests`.
    Ack { requests: u32 },
    /// A part of the answer to the oldest unanswered READ.
    ReadPart { last: bool, len: u32 },
    /// The answer to the oldest unanswered atomic operation: the value before the operation.
    Old { value: u64 },
    /// Reports that the request after number `requests` failed. All earlier requests were carried
    /// out.
    Nak { requests: u32, cause: Cause },
}

/// A range of the memory of the side that receives the PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSpan {
    pub addr: u64,
    pub rkey: u32,
    pub len: u32,
}

/// The operation that an atomic request performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    FetchAdd { add: u64 },
    CompareSwap { compare: u64, swap: u64 },
}

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The memory does not exist, or the requester has no right to access it.
    Access,
    /// The frame is longer than the posted receive buffer.
    TooLong,
    /// No receive is posted.
    NoReceive,
}

impl Cause {
    const ALL: [Self; 3] = [Self::Access, Self::TooLong, Self::NoReceive];

    const fn number(self) -> u32 {
        match self {
            Self::Access => 1,
            Self::TooLong => 2,
            Self::NoReceive => 3,
        }
    }
}

const SEND: u8 = 1;
const WRITE: u8 = 2;
const WRITE_WITH_IMM: u8 = 3;
const READ: u8 = 4;
const FETCH_ADD: u8 = 5;
const COMPARE_SWAP: u8 = 6;
const ACK: u8 = 16;
const READ_PART: u8 = 17;
const OLD: u8 = 18;
const NAK: u8 = 19;

/// A serialized header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    bytes: [u8; LONGEST_HEADER],
    len: u8,
}

impl Header {
    fn new(kind: u8, flags: u8, payload: u32) -> Self {
        let mut bytes = [0; LONGEST_HEADER];
        bytes[0] = kind;
        bytes[1] = flags;
        // The length field contains only the payload's length until `with` appends arguments.
        bytes[4..PREFIX].copy_from_slice(&payload.to_be_bytes());
        Self {
            bytes,
            len: PREFIX as u8,
        }
    }

    /// Appends an argument to the header, and adds the argument's length to the length field.
    fn with<const N: usize>(mut self, argument: [u8; N]) -> Self {
        let at = usize::from(self.len);
        self.bytes[at..at + N].copy_from_slice(&argument);
        self.len += N as u8;
        let length = be32(&self.bytes[4..]).wrapping_add(N as u32);
        self.bytes[4..PREFIX].copy_from_slice(&length.to_be_bytes());
        self
    }

    fn with_span(self, at: RemoteSpan) -> Self {
        self.with(at.addr.to_be_bytes()).with(at.rkey.to_be_bytes())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Pdu {
    /// Returns the length in bytes of the payload that follows the header.
    pub fn payload(&self) -> u32 {
        match *self {
            Self::Send { len, .. } | Self::ReadPart { len, .. } => len,
            Self::Write { at, .. } | Self::WriteWithImm { at, .. } => at.len,
            Self::Read { .. }
            | Self::Atomic { .. }
            | Self::Ack { .. }
            | Self::Old { .. }
            | Self::Nak { .. } => 0,
        }
    }

    pub fn emit(&self) -> Header {
        let signal = |signalled: bool| if signalled { SIGNALLED } else { 0 };
        let end = |last: bool| if last { LAST } else { 0 };
        match *self {
            Self::Send { signalled, len } => Header::new(SEND, signal(signalled), len),
            Self::Write {
                signalled,
                last,
                at,
            } => Header::new(WRITE, signal(signalled) | end(last), at.len).with_span(at),
            Self::WriteWithImm {
                signalled,
                at,
                imm_data,
            } => Header::new(WRITE_WITH_IMM, signal(signalled) | LAST, at.len)
                .with_span(at)
                .with(imm_data.to_be_bytes()),
            Self::Read { at } => Header::new(READ, 0, 0)
                .with_span(at)
                .with(at.len.to_be_bytes()),
            Self::Atomic { addr, rkey, change } => {
                let (kind, [first, second]) = match change {
                    Change::FetchAdd { add } => (FETCH_ADD, [add, 0]),
                    Change::CompareSwap { compare, swap } => (COMPARE_SWAP, [compare, swap]),
                };
                Header::new(kind, 0, 0)
                    .with(addr.to_be_bytes())
                    .with(rkey.to_be_bytes())
                    .with(first.to_be_bytes())
                    .with(second.to_be_bytes())
            }
            Self::Ack { requests } => Header::new(ACK, 0, 0).with(requests.to_be_bytes()),
            Self::ReadPart { last, len } => Header::new(READ_PART, end(last), len),
            Self::Old { value } => Header::new(OLD, 0, 0).with(value.to_be_bytes()),
            Self::Nak { requests, cause } => Header::new(NAK, 0, 0)
                .with(requests.to_be_bytes())
                .with(cause.number().to_be_bytes()),
        }
    }

    /// Parses the Send at the beginning of `bytes`. Returns a flag and the frame in the Send. The
    /// flag is true if the Send is signalled. Returns `None` if the Send is incomplete or invalid,
    /// or if `bytes` begins with another PDU: [`parse`](Self::parse) handles these cases.
    #[inline]
    pub fn whole_send(bytes: &[u8]) -> Option<(bool, &[u8])> {
        let (prefix, rest) = bytes.split_first_chunk::<PREFIX>()?;
        let [SEND, flags @ (0 | SIGNALLED), 0, 0, length @ ..] = *prefix else {
            return None;
        };
        let frame = rest.get(..u32::from_be_bytes(length) as usize)?;
        Some((flags == SIGNALLED, frame))
    }

    /// Parses the header at the beginning of `bytes`. Returns the PDU and the header's length in
    /// bytes, or `None` if the header is incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        let Some(prefix) = bytes.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let [kind, flags, ..] = *prefix;
        let (arguments, allowed) = match kind {
            SEND => (0, SIGNALLED),
            WRITE => (12, SIGNALLED | LAST),
            WRITE_WITH_IMM => (16, SIGNALLED | LAST),
            READ => (16, 0),
            FETCH_ADD | COMPARE_SWAP => (28, 0),
            ACK => (4, 0),
            READ_PART => (0, LAST),
            OLD | NAK => (8, 0),
            other => {
                return Err(Violation::new("pdu kind", other.into(), "a known kind"));
            }
        };
        let missing = kind == WRITE_WITH_IMM && flags & LAST == 0;
        if flags & !allowed != 0 || missing {
            return Err(Violation::new(
                "pdu flags",
                flags.into(),
                "valid flags for this kind",
            ));
        }
        let reserved = u16::from_be_bytes([prefix[2], prefix[3]]);
        if reserved != 0 {
            return Err(Violation::new("pdu reserved", reserved.into(), "0"));
        }
        let length = be32(&prefix[4..]);
        let wrong = |expected| Violation::new("pdu length", length.into(), expected);
        let Some(len) = length.checked_sub(arguments) else {
            return Err(wrong("at least the length of the arguments"));
        };
        let has_payload = matches!(kind, SEND | WRITE | WRITE_WITH_IMM | READ_PART);
        if !has_payload && len != 0 {
            return Err(wrong("the length of the arguments"));
        }
        if matches!(kind, WRITE | WRITE_WITH_IMM | READ_PART) && len > LONGEST_PART {
            return Err(wrong("at most the arguments and 256 KiB of payload"));
        }
        let end = PREFIX + arguments as usize;
        let Some(arguments) = bytes.get(PREFIX..end) else {
            return Ok(None);
        };
        let (signalled, last) = (flags & SIGNALLED != 0, flags & LAST != 0);
        let span = |len| RemoteSpan {
            addr: be64(arguments),
            rkey: be32(&arguments[8..]),
            len,
        };
        let pdu = match kind {
            SEND => Self::Send { signalled, len },
            WRITE => Self::Write {
                signalled,
                last,
                at: span(len),
            },
            WRITE_WITH_IMM => Self::WriteWithImm {
                signalled,
                at: span(len),
                imm_data: be32(&arguments[12..]),
            },
            READ => Self::Read {
                at: span(be32(&arguments[12..])),
            },
            FETCH_ADD if be64(&arguments[20..]) != 0 => {
                let value = be64(&arguments[20..]);
                return Err(Violation::new("pdu reserved", value, "0"));
            }
            FETCH_ADD => Self::Atomic {
                addr: be64(arguments),
                rkey: be32(&arguments[8..]),
                change: Change::FetchAdd {
                    add: be64(&arguments[12..]),
                },
            },
            COMPARE_SWAP => Self::Atomic {
                addr: be64(arguments),
                rkey: be32(&arguments[8..]),
                change: Change::CompareSwap {
                    compare: be64(&arguments[12..]),
                    swap: be64(&arguments[20..]),
                },
            },
            ACK => Self::Ack {
                requests: be32(arguments),
            },
            READ_PART => Self::ReadPart { last, len },
            OLD => Self::Old {
                value: be64(arguments),
            },
            _ => {
                let number = be32(&arguments[4..]);
                let cause = Cause::ALL
                    .into_iter()
                    .find(|cause| cause.number() == number)
                    .ok_or_else(|| Violation::new("nak cause", number.into(), "a known cause"))?;
                Self::Nak {
                    requests: be32(arguments),
                    cause,
                }
            }
        };
        Ok(Some((pdu, end)))
    }
}

/// Returns the first four bytes as a big-endian number.
fn be32(bytes: &[u8]) -> u32 {
    bytes[..4]
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Returns the first eight bytes as a big-endian number.
fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: RemoteSpan = RemoteSpan {
        addr: 0x0102_0304_0506_0708,
        rkey: 0x1112_1314,
        len: 5,
    };

    fn all() -> Vec<(Pdu, Vec<u8>)> {
        let at = b"\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14";
        let header = |kind: u8, flags: u8, length: u8, rest: &[&[u8]]| {
            let mut bytes = vec![kind, flags, 0, 0, 0, 0, 0, length];
            bytes.extend(rest.concat());
            bytes
        };
        let add = 0x2122_2324_2526_2728_u64;
        vec![
            (
                Pdu::Send {
                    signalled: true,
                    len: 9,
                },
                header(1, 1, 9, &[]),
            ),
            (
                Pdu::Write {
                    signalled: true,
                    last: false,
                    at: AT,
                },
                header(2, 1, 17, &[at]),
            ),
            (
                Pdu::Write {
                    signalled: false,
                    last: true,
                    at: AT,
                },
                header(2, 2, 17, &[at]),
            ),
            (
                Pdu::WriteWithImm {
                    signalled: true,
                    at: AT,
                    imm_data: 7,
                },
                header(3, 3, 21, &[at, &[0, 0, 0, 7]]),
            ),
            (Pdu::Read { at: AT }, header(4, 0, 16, &[at, &[0, 0, 0, 5]])),
            (
                Pdu::Atomic {
                    addr: AT.addr,
                    rkey: AT.rkey,
                    change: Change::FetchAdd { add },
                },
                header(5, 0, 28, &[at, &add.to_be_bytes(), &[0; 8]]),
            ),
            (
                Pdu::Atomic {
                    addr: AT.addr,
                    rkey: AT.rkey,
                    change: Change::CompareSwap {
                        compare: add,
                        swap: 1,
                    },
                },
                header(6, 0, 28, &[at, &add.to_be_bytes(), &1_u64.to_be_bytes()]),
            ),
            (Pdu::Ack { requests: 3 }, header(16, 0, 4, &[&[0, 0, 0, 3]])),
            (Pdu::ReadPart { last: true, len: 4 }, header(17, 2, 4, &[])),
            (
                Pdu::Old { value: add },
                header(18, 0, 8, &[&add.to_be_bytes()]),
            ),
            (
                Pdu::Nak {
                    requests: 2,
                    cause: Cause::TooLong,
                },
                header(19, 0, 8, &[&[0, 0, 0, 2, 0, 0, 0, 2]]),
            ),
        ]
    }

    #[test]
    fn each_header_lies_on_the_wire_as_documented() {
        for (pdu, bytes) in all() {
            assert_eq!(pdu.emit().bytes(), bytes, "{pdu:?}");
            assert_eq!(Pdu::parse(&bytes), Ok(Some((pdu, bytes.len()))));
            for len in 0..bytes.len() {
                assert_eq!(Pdu::parse(&bytes[..len]), Ok(None), "{pdu:?} cut to {len}");
            }
        }
    }

    #[test]
    fn whole_send_agrees_with_parse_for_each_prefix() {
        for (_, good) in all() {
            for place in 0..PREFIX {
                for value in 0..=u8::MAX {
                    let mut bytes = [&good[..PREFIX], b"nine more bytes"].concat();
                    bytes[place] = value;
                    let parsed = match Pdu::parse(&bytes) {
                        Ok(Some((Pdu::Send { signalled, len }, PREFIX))) => bytes
                            .get(PREFIX..PREFIX + len as usize)
                            .map(|frame| (signalled, frame)),
                        _ => None,
                    };
                    assert_eq!(Pdu::whole_send(&bytes), parsed, "{bytes:?}");
                }
            }
        }
        let send = [1, 1, 0, 0, 0, 0, 0, 2, 7, 8];
        assert_eq!(Pdu::whole_send(&send), Some((true, &[7, 8][..])));
        for len in 0..send.len() {
            assert_eq!(Pdu::whole_send(&send[..len]), None);
        }
    }

    #[test]
    fn the_tables_of_protocol_md_are_these() {
        let page = include_str!("../PROTOCOL.md");
        let (_, table) = page.split_once("<!-- table: pdus -->\n").unwrap();
        let rows: Vec<Vec<&str>> = table
            .lines()
            .take_while(|line| line.starts_with('|'))
            .skip(2)
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        let mut seen = Vec::new();
        for row in rows {
            let [kind, name, flags, arguments, payload] = row[..] else {
                panic!("{row:?}")
            };
            let kind: u8 = kind.parse().unwrap();
            seen.push(kind);
            let (pdu, bytes) = all().into_iter().find(|(_, b)| b[0] == kind).unwrap();
            let name_here = match pdu {
                Pdu::Atomic { change, .. } => format!("{change:?}"),
                other => format!("{other:?}"),
            };
            assert!(name_here.starts_with(name), "{name}: {name_here}");
            let sizes = arguments.split('(').skip(1);
            let len: usize = sizes
                .map(|rest| rest.split_once(')').unwrap().0.parse::<usize>().unwrap())
                .sum();
            assert_eq!(PREFIX + len, bytes.len(), "{name}");
            assert_eq!(payload != "–", pdu.payload() > 0, "{name}");
            for (flag, word) in [(SIGNALLED, "signalled"), (LAST, "last")] {
                let mut changed = bytes.clone();
                changed[1] |= flag;
                let allowed = Pdu::parse(&changed).is_ok();
                assert_eq!(allowed, flags.contains(word), "{name} {word}");
            }
        }
        let mut kinds: Vec<u8> = all().iter().map(|(_, bytes)| bytes[0]).collect();
        kinds.dedup();
        assert_eq!(seen, kinds);
    }

    #[test]
    fn malformed_header_names_its_field() {
        let parse = |bytes: &[u8]| Pdu::parse(bytes).unwrap_err().field();
        for (pdu, good) in all() {
            let mut bytes = good.clone();
            bytes[3] = 1;
            assert_eq!(parse(&bytes), "pdu reserved", "{pdu:?}");
            bytes = good.clone();
            bytes[1] |= 4;
            assert_eq!(parse(&bytes), "pdu flags", "{pdu:?}");
            if pdu.payload() == 0 {
                bytes = good.clone();
                bytes[7] += 1;
                assert_eq!(parse(&bytes), "pdu length", "{pdu:?}");
            }
        }
        for kind in [0, 7, 15, 20, b'G', 0x16] {
            assert_eq!(parse(&[kind, 0, 0, 0, 0, 0, 0, 0]), "pdu kind");
        }
        assert_eq!(parse(&[WRITE, 0, 0, 0, 0, 0, 0, 11]), "pdu length");
        assert_eq!(parse(&[READ_PART, 0, 0, 0, 0, 4, 0, 1]), "pdu length");
        let mut add = [0; LONGEST_HEADER - 4];
        add[0] = FETCH_ADD;
        add[7] = 28;
        assert!(Pdu::parse(&add).is_ok());
        add[35] = 1;
        assert_eq!(
            parse(&add),
            "pdu reserved",
            "the bytes after the value to add must be 0"
        );
        let unknown = [NAK, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(parse(&unknown), "nak cause");
    }
}
