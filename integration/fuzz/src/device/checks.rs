//! Checks the work requests that the connection posts.

use super::{Credit, Device, Large, Sent};
use crate::{
    proto::{CONTROL_RECEIVES, CONTROL_SENDS, FragmentCopy, READS, Read, Transmit},
    wire::word,
};

/// The maximum length in bytes of a chunk. A chunk is the part of a large message that one READ
/// fetches.
const CHUNK: u64 = 1 << 20;

impl Device {
    pub(super) fn take_slot(
        &mut self,
        slot: u32,
        reserved: u32,
        signalled: bool,
        read: Option<u64>,
    ) {
        assert!(self.ended.is_none());
        let slots = self.params.send_slots + READS + CONTROL_SENDS;
        assert!(slot < slots, "the connection must use an existing slot");
        assert!(
            self.sending.iter().all(|sent| sent.slot != slot),
            "the slot must be free"
        );
        self.sending.push_back(Sent {
            slot,
            signalled,
            read,
        });
        assert!(self.sending.len() <= (slots - reserved) as usize);
        assert!(
            self.sending.len() < slots as usize || self.sending.iter().any(|sent| sent.signalled),
            "a full send queue must contain a signalled work request"
        );
    }

    pub(super) fn post(&mut self, transmit: &Transmit, len: u32) {
        let header = &transmit.header;
        let (kind, grant, arg) = (header[0], word(header, 4), word(header, 12));
        let reserved = match kind {
            1 | 16..=18 => READS + CONTROL_SENDS,
            2..=14 => 0,
            other => panic!("kind {other}"),
        };
        assert!(!self.sent_kinds.contains(&9) || !matches!(kind, 1 | 9 | 16..=18));
        assert!(
            self.held == 0 || !matches!(kind, 5 | 9) || self.conn.close_reason().is_some(),
            "no Close or Finish may be sent before the held messages"
        );
        self.take_slot(transmit.slot, reserved, transmit.signalled, None);
        assert_eq!(header[1], 0);
        assert_eq!(header[2..4], (self.sent_kinds.len() as u16).to_be_bytes());
        self.sent_kinds.push(kind);
        if kind == 18 {
            assert!(len > 0 && len <= word(header, 8));
        } else {
            assert_eq!(word(header, 8), len);
        }
        // A grant must never decrease. It must not exceed the number of released messages plus the
        // window.
        assert!(grant >= self.reported.0 && grant <= self.released + u32::from(self.params.window));
        self.reported.0 = grant;
        match kind {
            10 => {
                assert_eq!(
                    arg, self.control_posted,
                    "control messages must be sent in order"
                );
                self.control_posted += 1;
            }
            11 => {
                let Credit { used, limit } = &mut self.control_received;
                assert_eq!(
                    limit, used,
                    "a Permit may be sent only after the peer has used all its credits"
                );
                assert!(arg > *limit && arg == *used - self.untaken + 2);
                *limit = arg;
            }
            13 => assert!(self.long && !self.established),
            14 => assert!(self.long && !self.established && arg <= 1),
            _ => {}
        }
        if !matches!(kind, 6 | 8 | 10 | 11 | 14) {
            assert!(arg >= self.reported.1 && arg <= self.taken);
            self.reported.1 = arg;
        }
        if matches!(kind, 1 | 16..=18) {
            self.credit.use_for(1);
        }
    }

    pub(super) fn begin(&mut self, id: u32, len: u64) {
        let first = self.inbound.iter_mut().find(|large| large.id.is_none());
        let first = first.expect("the peer must have announced the large message");
        assert_eq!(len, first.descriptor.len);
        first.id = Some(id);
        self.conn.handle_memory(id, self.now);
    }

    pub(super) fn read(&mut self, read: &Read) {
        let first = self.first_incomplete();
        assert_eq!(
            read.offset, first.requested,
            "READs must neither repeat nor omit bytes"
        );
        assert!(read.len > 0 && read.len <= CHUNK);
        assert!(read.offset + read.len <= first.descriptor.len);
        assert_eq!(read.remote_addr, first.descriptor.addr + read.offset);
        assert_eq!(read.rkey, first.descriptor.rkey);
        assert_eq!(first.id, Some(read.id));
        first.requested += read.len;
        self.take_slot(read.slot, CONTROL_SENDS, true, Some(read.len));
        let reads = self.sending.iter().filter(|sent| sent.read.is_some());
        assert!(reads.count() <= READS as usize);
    }

    pub(super) fn copy(&mut self, copy: &FragmentCopy) {
        let frame = &self.filled[&copy.buffer];
        assert_eq!((frame[0], frame.len()), (18, 16 + copy.len as usize));
        let first = self.first_incomplete();
        assert_eq!((first.id, first.requested), (Some(copy.id), copy.offset));
        first.requested += u64::from(copy.len);
        first.completed = first.requested;
        assert!(first.completed <= first.descriptor.len);
        self.conn.handle_copied(self.now);
    }

    /// Returns the message to which the next READ or fragment belongs.
    fn first_incomplete(&mut self) -> &mut Large {
        self.inbound
            .iter_mut()
            .find(|large| large.requested < large.descriptor.len)
            .expect("the peer must have announced the large message")
    }

    /// Returns the number of bytes that the peer must still send to complete a message that is sent
    /// in fragments. Returns `None` if no such message is incomplete.
    pub(crate) fn missing(&self) -> Option<u32> {
        let last = self.inbound.back()?;
        (last.missing > 0).then_some(last.missing)
    }

    pub(super) fn take_filled(&mut self, buffer: u32) -> Vec<u8> {
        let frame = self.filled.remove(&buffer);
        frame.expect("the buffer must be filled")
    }

    pub(super) fn repost(&mut self, buffer: u32) {
        let count = u32::from(self.params.window) + CONTROL_RECEIVES;
        assert!(
            buffer < count,
            "the connection must repost an existing buffer"
        );
        assert!(!self.posted.contains(&buffer) && !self.kept.contains(&buffer));
        self.posted.push_back(buffer);
    }
}
