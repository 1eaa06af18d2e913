//! Checks that the parts of a write by the peer arrive in order.

use crate::proto::Violation;
use crate::proto::tcp::Pdu;

/// The peer's write whose last part has not arrived yet. `None` if no write is unfinished.
#[derive(Debug, Default)]
pub(super) struct WriteParts(Option<Unfinished>);

#[derive(Clone, Copy, Debug)]
struct Unfinished {
    /// The address and the key that the next part must have.
    addr: u64,
    rkey: u32,
    /// The number of bytes of the write that have arrived.
    len: u32,
}

impl WriteParts {
    /// Returns whether another part of a write must follow.
    #[inline]
    pub(super) fn is_unfinished(&self) -> bool {
        self.0.is_some()
    }

    /// Checks that each part of a write begins at the end of the previous part, and that no other
    /// request comes between the parts. Over RDMA the device checks this.
    ///
    /// Returns the total length in bytes of this part and of all earlier parts of the write.
    /// Returns 0 for any other PDU.
    pub(super) fn check(&mut self, pdu: &Pdu) -> Result<u32, Violation> {
        let (at, last) = match *pdu {
            Pdu::Write { at, last, .. } => (Some(at), last),
            Pdu::WriteWithImm { at, .. } => (Some(at), true),
            Pdu::Send { .. } | Pdu::Read { .. } | Pdu::Atomic { .. } => (None, true),
            Pdu::Ack { .. } | Pdu::ReadPart { .. } | Pdu::Old { .. } | Pdu::Nak { .. } => {
                return Ok(0);
            }
        };
        let before = self.0.take();
        let wrong = |value| Violation::new("write part", value, "the next part of the write");
        let Some(at) = at else {
            return before.map_or(Ok(0), |_| Err(wrong(0)));
        };
        let follows = |before: Unfinished| (before.addr, before.rkey) == (at.addr, at.rkey);
        let len = match before {
            None => Some(at.len),
            Some(before) if follows(before) => before.len.checked_add(at.len),
            Some(_) => None,
        };
        let len = len.ok_or_else(|| wrong(at.addr))?;
        if !last {
            self.0 = Some(Unfinished {
                addr: at.addr.wrapping_add(at.len.into()),
                rkey: at.rkey,
                len,
            });
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::tcp::{LONGEST_PART, RemoteSpan};

    #[test]
    fn parts_longer_than_32_bits_are_a_violation() {
        let mut writes = WriteParts::default();
        let part = |number: u64| Pdu::Write {
            signalled: false,
            last: false,
            at: RemoteSpan {
                addr: number * u64::from(LONGEST_PART),
                rkey: 1,
                len: LONGEST_PART,
            },
        };
        let fitting = u64::from(u32::MAX / LONGEST_PART);
        for number in 0..fitting {
            let len = (number + 1) as u32 * LONGEST_PART;
            assert_eq!(writes.check(&part(number)), Ok(len));
        }
        let violation = writes.check(&part(fitting)).unwrap_err();
        assert_eq!(violation.field(), "write part");
    }
}
