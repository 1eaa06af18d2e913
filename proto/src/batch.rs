//! The payload of a Batch frame: several messages, each preceded by its length.

use super::reason::Violation;

/// The length in bytes of the prefix before each message in a batch. The prefix contains the
/// message's length in network byte order.
pub const PART_HEADER_LEN: usize = 4;

/// The maximum number of messages that this side puts into a batch. A batch from the peer can
/// contain more messages, up to the peer's credit.
pub const MAX_PARTS: usize = 64;

/// A summary of the messages in a Batch frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Batch {
    /// The number of messages, at least 1.
    pub(super) count: u32,
    /// The length in bytes of the longest message.
    pub(super) longest: u32,
}

impl Batch {
    /// Checks the payload of a Batch frame. Returns the number of its messages and the length of
    /// the longest message.
    pub(super) fn parse(payload: &[u8]) -> Result<Self, Violation> {
        let mut parts = parts(payload);
        let batch = parts.by_ref().fold(
            Self {
                count: 0,
                longest: 0,
            },
            |batch, (_, len)| Self {
                count: batch.count + 1,
                longest: batch.longest.max(len),
            },
        );
        let rest = parts.rest();
        if rest > 0 || batch.count == 0 {
            return Err(Violation::new(
                "batch",
                rest as u64,
                "messages whose lengths add up to the frame's length",
            ));
        }
        Ok(batch)
    }
}

/// Returns an iterator over the messages of a batch. Each item is the message's offset in the
/// payload and its length, both in bytes.
pub fn parts(payload: &[u8]) -> Parts<'_> {
    Parts { payload, at: 0 }
}

/// Iterator over the messages of a batch: see [`parts`].
#[derive(Debug)]
pub struct Parts<'a> {
    payload: &'a [u8],
    at: usize,
}

impl Parts<'_> {
    /// Returns the number of payload bytes that the iterator has not yielded. If the number is not
    /// 0 at the end of the iteration, the payload is malformed.
    fn rest(&self) -> usize {
        self.payload.len() - self.at
    }
}

impl Iterator for Parts<'_> {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        let (len, rest) = self.payload[self.at..].split_first_chunk::<PART_HEADER_LEN>()?;
        let len = u32::from_be_bytes(*len);
        if len as usize > rest.len() {
            return None;
        }
        // The cast loses no bits, because a frame is far shorter than 4 GiB.
        let start = (self.at + PART_HEADER_LEN) as u32;
        self.at = start as usize + len as usize;
        Some((start, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_batch_yields_its_messages() {
        let payload = b"\0\0\0\x02hi\0\0\0\0\0\0\0\x01!";
        let batch = Batch::parse(payload).unwrap();
        assert_eq!((batch.count, batch.longest), (3, 2));
        let texts = parts(payload).map(|(at, len)| &payload[at as usize..][..len as usize]);
        assert_eq!(texts.collect::<Vec<_>>(), [&b"hi"[..], b"", b"!"]);
    }

    #[test]
    fn inconsistent_batch_lengths_are_a_violation() {
        let cases: [(&[u8], u64); 6] = [
            (b"", 0),
            (b"\0\0\0", 3),
            (b"\0\0\0\x02h", 5),
            (b"\0\0\0\x01hi", 1),
            (b"\0\0\0\x01h\0\0\0\x01", 4),
            (b"\xff\xff\xff\xffh", 5),
        ];
        for (payload, rest) in cases {
            let violation = Batch::parse(payload).unwrap_err();
            assert_eq!(violation.field(), "batch", "{payload:?}");
            let expected = format!("{rest}");
            assert!(violation.to_string().contains(&expected), "{violation}");
        }
    }
}
