//! The setup messages: the first bytes of a TCP stream, which replace the messages of the RDMA
//! connection manager. See PROTOCOL.md, "Over TCP".

/// The maximum length of private data in bytes, the same as in a reply over RDMA.
pub(super) const PRIVATE_DATA_MAX: usize = 196;
/// The number of bytes before the private data.
pub(super) const PREFIX: usize = 8;

const MAGIC: [u8; 4] = *b"rdmt";
const VERSION: u8 = 1;

/// The kind of a setup message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Accept,
    Reject,
}

/// The fixed part of a setup message, before its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) kind: Kind,
    /// The maximum number of READs and atomic operations that the sender serves at a time.
    pub(super) reads: u8,
    /// The length of the private data in bytes.
    pub(super) len: u8,
}

/// The reason why bytes are not a complete setup message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMessage {
    /// The message is incomplete.
    Short,
    /// The sender uses another protocol.
    Foreign,
    /// The message has this unsupported version.
    Version(u8),
}

impl Prefix {
    pub(super) fn emit(self) -> [u8; PREFIX] {
        let kind = match self.kind {
            Kind::Request => 1,
            Kind::Accept => 2,
            Kind::Reject => 3,
        };
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, VERSION, kind, self.reads, self.len]
    }

    /// Parses a prefix. Fails at the first wrong byte of the magic number or of the version. So
    /// this side need not wait for more bytes before it rejects a peer that uses another protocol.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, NoMessage> {
        if bytes.iter().zip(MAGIC).any(|(byte, magic)| *byte != magic) {
            return Err(NoMessage::Foreign);
        }
        if let Some(version) = bytes.get(4)
            && *version != VERSION
        {
            return Err(NoMessage::Version(*version));
        }
        let Some([_, _, _, _, _, kind, reads, len]) = bytes.first_chunk() else {
            return Err(NoMessage::Short);
        };
        let kind = match kind {
            1 => Kind::Request,
            2 => Kind::Accept,
            3 => Kind::Reject,
            _ => return Err(NoMessage::Foreign),
        };
        if usize::from(*len) > PRIVATE_DATA_MAX {
            return Err(NoMessage::Foreign);
        }
        Ok(Self {
            kind,
            reads: *reads,
            len: *len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_lies_on_the_wire_as_documented() {
        for (kind, number) in [(Kind::Request, 1), (Kind::Accept, 2), (Kind::Reject, 3)] {
            let prefix = Prefix {
                kind,
                reads: 16,
                len: 36,
            };
            let bytes = [b'r', b'd', b'm', b't', 1, number, 16, 36];
            assert_eq!(prefix.emit(), bytes);
            assert_eq!(Prefix::parse(&bytes), Ok(prefix));
            for len in 0..PREFIX {
                assert_eq!(Prefix::parse(&bytes[..len]), Err(NoMessage::Short));
            }
        }
    }

    #[test]
    fn the_table_of_protocol_md_is_this() {
        let page = include_str!("../../../proto/PROTOCOL.md");
        let (_, table) = page.split_once("<!-- table: setup -->\n").unwrap();
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim);
        let fields: Vec<Vec<&str>> = rows.skip(2).map(|line| cells(line).collect()).collect();
        let offsets: Vec<&str> = fields.iter().map(|field| field[0]).collect();
        assert_eq!(offsets, ["0", "4", "5", "6", "7"]);
        assert!(fields[0][3].contains("rdmt") && MAGIC == *b"rdmt");
        assert_eq!(fields[1][3], VERSION.to_string());
        assert_eq!(fields[2][3], "1 request, 2 accept, 3 reject");
        assert!(fields[4][3].contains(&PRIVATE_DATA_MAX.to_string()));
    }

    #[test]
    fn foreign_protocol_is_detected_at_first_wrong_byte() {
        for bytes in [
            &b"G"[..],
            b"\x16\x03\x01",
            b"rdms",
            b"rdmt\x01\x04",
            b"rdmt\x01\x04\x00\x00",
            b"rdmt\x01\x01\x00\xc5",
        ] {
            let wanted = if bytes == b"rdmt\x01\x04" {
                NoMessage::Short
            } else {
                NoMessage::Foreign
            };
            assert_eq!(Prefix::parse(bytes), Err(wanted), "{bytes:?}");
        }
        assert_eq!(Prefix::parse(b"rdmt\x02"), Err(NoMessage::Version(2)));
    }
}
