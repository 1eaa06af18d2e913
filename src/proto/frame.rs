use super::reason::Violation;

/// Bytes of header before each frame's payload.
pub(crate) const HEADER_LEN: usize = 16;

/// What a frame is for. The number is its first byte on the wire.
///
/// Set aside for large messages: 16 for a rendezvous, which takes a credit as data does and has the descriptor for its payload, and 17
/// for its acknowledgement, which takes none and so needs receives of its own in [`CONTROL_RECEIVES`](super::CONTROL_RECEIVES).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// One message of the application. Takes a credit; all others don't.
    Data = 1,
    /// Carries a grant and nothing else.
    Grant = 2,
    /// Asks for a sign of life.
    Ping = 3,
    /// Answers a ping.
    Pong = 4,
    /// Nothing but control frames follows.
    Close = 5,
    /// The sender ends the connection at once; `arg` is the application's code.
    Abort = 6,
}

impl Kind {
    fn parse(byte: u8) -> Option<Self> {
        [
            Self::Data,
            Self::Grant,
            Self::Ping,
            Self::Pong,
            Self::Close,
            Self::Abort,
        ]
        .into_iter()
        .find(|k| *k as u8 == byte)
    }
}

/// A frame's header. On the wire, little-endian: kind `u8`, flags `u8` = 0, reserved `u16` = 0, grant `u32`, len `u32`, arg `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// How many data frames the receiver of this frame may have sent in all, modulo 2³².
    pub(crate) grant: u32,
    /// Bytes of payload behind the header.
    pub(crate) len: u32,
    /// What it means depends on the kind.
    pub(crate) arg: u32,
}

impl Header {
    pub(crate) fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.grant.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.arg.to_le_bytes());
        bytes
    }

    /// Reads the header of a received frame and checks everything about it that does not depend on the connection's state.
    pub(crate) fn parse(frame: &[u8]) -> Result<Self, Violation> {
        let Some((header, payload)) = frame.split_first_chunk::<HEADER_LEN>() else {
            return Err(Violation::new(
                "frame length",
                frame.len() as u64,
                "at least 16 bytes",
            ));
        };
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let kind = Kind::parse(header[0])
            .ok_or_else(|| Violation::new("kind", header[0].into(), "a known kind"))?;
        if header[1] != 0 {
            return Err(Violation::new("flags", header[1].into(), "0"));
        }
        let reserved = u16::from_le_bytes([header[2], header[3]]);
        if reserved != 0 {
            return Err(Violation::new("reserved", reserved.into(), "0"));
        }
        let parsed = Self {
            kind,
            grant: word(4),
            len: word(8),
            arg: word(12),
        };
        if parsed.len as usize != payload.len() {
            return Err(Violation::new(
                "len",
                parsed.len.into(),
                "the length of what was received",
            ));
        }
        match kind {
            Kind::Data => {}
            Kind::Grant | Kind::Ping | Kind::Pong | Kind::Close | Kind::Abort
                if parsed.len != 0 =>
            {
                return Err(Violation::new(
                    "len",
                    parsed.len.into(),
                    "0 in a control frame",
                ));
            }
            Kind::Grant | Kind::Ping | Kind::Pong | Kind::Close | Kind::Abort => {}
        }
        if kind != Kind::Abort && parsed.arg != 0 {
            return Err(Violation::new(
                "arg",
                parsed.arg.into(),
                "0 in this kind of frame",
            ));
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::testing::cases;

    fn kind() -> impl Strategy<Value = Kind> {
        prop::sample::select(vec![
            Kind::Data,
            Kind::Grant,
            Kind::Ping,
            Kind::Pong,
            Kind::Close,
            Kind::Abort,
        ])
    }

    #[test]
    fn a_header_lies_on_the_wire_as_documented() {
        let header = Header {
            kind: Kind::Abort,
            grant: 0x0102_0304,
            len: 0,
            arg: 0x0506_0708,
        };
        let bytes = [6, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0, 8, 7, 6, 5];
        assert_eq!(header.emit(), bytes);
    }

    #[test]
    fn the_numbers_of_large_messages_are_unknown_yet() {
        for number in [0, 7, 16, 17] {
            let mut frame = [0; HEADER_LEN];
            frame[0] = number;
            assert_eq!(Header::parse(&frame).unwrap_err().field(), "kind");
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn a_frame_comes_back_as_it_went(
            kind in kind(),
            grant in any::<u32>(),
            arg in any::<u32>(),
            payload in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let payload = if kind == Kind::Data { payload } else { Vec::new() };
            let arg = if kind == Kind::Abort { arg } else { 0 };
            let header = Header { kind, grant, len: payload.len() as u32, arg };
            let frame = [&header.emit()[..], &payload].concat();
            prop_assert_eq!(Header::parse(&frame), Ok(header));
            prop_assert!(Header::parse(&frame[..frame.len() - 1]).is_err(), "cut short");
        }

        #[test]
        fn what_is_taken_is_what_would_be_sent(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert_eq!(&header.emit()[..], &bytes[..HEADER_LEN]);
            }
        }
    }
}
