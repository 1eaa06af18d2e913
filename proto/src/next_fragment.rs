use crate::frame::{HEADER_LEN, Header};

/// The next fragment of a message: the fields of its header that follow from the fragment before.
///
/// A transport that receives the header of a frame before its payload can recognise the fragment,
/// and receive the payload into the memory of the message. The state machine checks the whole frame
/// afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextFragment {
    sequence: u16,
    missing: u32,
}

impl NextFragment {
    /// Returns the fragment that must follow a frame with `payload` bytes behind this header.
    /// Returns `None` if the frame is not a fragment, or is the last one of its message.
    #[inline]
    pub fn after(header: &[u8; HEADER_LEN], payload: usize) -> Option<Self> {
        let header = Header::parse_fragment(header)?;
        let missing = header.len.checked_sub(u32::try_from(payload).ok()?)?;
        (missing > 0).then_some(Self {
            sequence: header.sequence.wrapping_add(1),
            missing,
        })
    }

    /// Returns the number of bytes from the start of the fragment to the end of the message.
    pub fn missing(&self) -> u32 {
        self.missing
    }

    /// Returns whether this is the header of the fragment, and the fragment may have `payload`
    /// bytes of payload.
    pub fn begins(&self, header: &[u8; HEADER_LEN], payload: usize) -> bool {
        payload > 0
            && payload as u64 <= self.missing.into()
            && Header::parse_fragment(header).is_some_and(|header| {
                (header.sequence, header.len) == (self.sequence, self.missing)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Kind;

    fn header(kind: Kind, sequence: u16, len: u32) -> [u8; HEADER_LEN] {
        let (grant, arg) = (7, 9);
        Header {
            kind,
            sequence,
            grant,
            len,
            arg,
        }
        .emit()
    }

    #[test]
    fn next_fragment_is_recognised_by_its_header() {
        let first = header(Kind::Fragment, u16::MAX, 300);
        let next = NextFragment::after(&first, 256).unwrap();
        assert_eq!(next.missing(), 44);
        let good = header(Kind::Fragment, 0, 44);
        for payload in [1, 43, 44] {
            assert!(next.begins(&good, payload), "{payload}");
        }
        for payload in [0, 45, usize::MAX] {
            assert!(!next.begins(&good, payload), "{payload}");
        }
        let others = [
            header(Kind::Data, 0, 44),
            header(Kind::Fragment, 1, 44),
            header(Kind::Fragment, 0, 43),
            header(Kind::Fragment, 0, 300),
        ];
        for other in others {
            assert!(!next.begins(&other, 40), "{other:?}");
        }
        let mut flagged = good;
        flagged[1] = 1;
        assert!(!next.begins(&flagged, 44));
    }

    #[test]
    fn nothing_follows_other_frames() {
        let last = header(Kind::Fragment, 3, 44);
        assert_eq!(NextFragment::after(&last, 44), None);
        assert_eq!(NextFragment::after(&last, 45), None, "too long");
        assert_eq!(NextFragment::after(&last, usize::MAX), None);
        assert_eq!(NextFragment::after(&header(Kind::Data, 3, 44), 4), None);
        assert_eq!(NextFragment::after(&header(Kind::Batch, 3, 44), 4), None);
    }
}
