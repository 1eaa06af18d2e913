//! The actions of the applications, processes and devices of a [`Pair`].

use rdma_status::WcStatus;

use super::{
    pair::Pair,
    side::{Cm, InFlight, Kept, WorkKind, exposed},
};
use crate::{
    BatchRoom, CloseReason, PART_HEADER_LEN, SendMethod, SendRefused, Work,
    connection::Flush,
    frame::{Descriptor, Header, Kind},
};

impl Pair {
    /// Sends the next message. Returns whether the connection accepted the message.
    pub(super) fn send(&mut self, at: usize) -> bool {
        let side = &mut self.sides[at];
        if side.held > 0 {
            return false;
        }
        let sent = side.conn.send(4).map(|transmit| {
            let number = side.sent.to_le_bytes();
            side.post(transmit, &number);
        });
        self.sent(at, sent)
    }

    /// Sends up to `most` messages in one frame. Returns the number of messages that the connection
    /// accepted.
    pub(super) fn send_batch(&mut self, at: usize, most: usize) -> usize {
        let side = &mut self.sides[at];
        if side.held > 0 {
            return 0;
        }
        let fits = |room: BatchRoom| {
            most.min(room.messages)
                .min(room.bytes / (PART_HEADER_LEN + 4))
        };
        let mut count = 0;
        let sent = side.conn.batch_room().and_then(|room| {
            count = fits(room);
            let payload = batch(side.sent, count as u32);
            let transmit = side.conn.send_batch(count as u32, payload.len())?;
            side.post(transmit, &payload);
            side.sent += count as u32 - 1;
            Ok(())
        });
        if self.sent(at, sent) { count } else { 0 }
    }

    /// Sends the next message as a large message of `len` bytes. Returns whether the connection
    /// accepted the message.
    pub(super) fn send_large(&mut self, at: usize, len: u64) -> bool {
        let side = &mut self.sides[at];
        if side.held > 0 {
            return false;
        }
        let descriptor = exposed(side.sent, len);
        let sent = side.conn.send_large(&descriptor).map(|transmit| {
            side.exposed.push_back(descriptor);
            side.post(transmit, &descriptor.emit());
        });
        self.sent(at, sent)
    }

    /// Sends the next message in fragments. The length `len` is a multiple of 4 bytes. Returns
    /// whether the connection accepted the message.
    pub(super) fn send_fragments(&mut self, at: usize, len: u32) -> bool {
        let side = &mut self.sides[at];
        if side.held > 0 {
            return false;
        }
        let SendMethod::Fragments(count) = side.conn.send_method(len as usize) else {
            return false;
        };
        let sent = side.conn.may_send(len as usize).map(|()| {
            let (mut offset, mut frames) = (0, 0);
            while offset < len {
                let sent = side.conn.send_fragment(len, offset);
                let (transmit, here) = sent.expect("there is room for all fragments");
                let words = side.sent.to_le_bytes().repeat(here as usize / 4);
                side.post(transmit, &words);
                (offset, frames) = (offset + here, frames + 1);
            }
            assert_eq!(frames, count);
        });
        self.sent(at, sent)
    }

    fn sent(&mut self, at: usize, sent: Result<(), SendRefused>) -> bool {
        let side = &mut self.sides[at];
        match sent {
            Ok(()) => side.sent += 1,
            Err(SendRefused::Blocked) => side.writable = false,
            Err(SendRefused::Finished | SendRefused::Closed(_)) => {}
            Err(SendRefused::TooLong { limit }) => panic!("no test sends more than {limit} bytes"),
        }
        self.perform_outputs(at);
        sent.is_ok()
    }

    /// Sends the next control message. Returns whether the connection accepted the message.
    pub(super) fn send_control_message(&mut self, at: usize) -> bool {
        let side = &mut self.sides[at];
        let number = side.control_sent.to_le_bytes();
        let is_sent = side.conn.send_control_message(&number).is_ok();
        side.control_sent += u32::from(is_sent);
        self.perform_outputs(at);
        is_sent
    }

    /// Reports to the peer that this side wants to end the connection soon. Returns false if the
    /// connection refuses to send the report.
    pub(super) fn ask_to_leave(&mut self, at: usize) -> bool {
        let is_asked = self.sides[at].conn.ask_to_leave().is_ok();
        self.sides[at].leaves |= is_asked;
        self.perform_outputs(at);
        is_asked
    }

    /// Takes a delivered control message on behalf of the application.
    pub(super) fn take_control_message(&mut self, at: usize) {
        let side = &mut self.sides[at];
        side.control_kept -= 1;
        side.conn.take_control_message();
        self.perform_outputs(at);
    }

    /// Half-closes the connection on behalf of the application.
    pub(super) fn finish_sending(&mut self, at: usize) {
        let _ = self.sides[at].conn.finish();
        self.perform_outputs(at);
    }

    /// Makes the driver hold back the next message. Returns false and holds back nothing in three
    /// cases: the message can be sent now, the frame of the held-back messages is full, or the
    /// connection does not permit the driver to hold back messages.
    pub(super) fn hold_back(&mut self, at: usize) -> bool {
        let side = &mut self.sides[at];
        let frame = side.conn.negotiated().map_or(0, |sides| sides.send_eager);
        let full = (side.held + 1) * (PART_HEADER_LEN as u32 + 4) > frame;
        if full || (side.held == 0 && side.conn.may_send(4) != Err(SendRefused::Blocked)) {
            return false;
        }
        if !side.conn.hold() {
            return false;
        }
        if side.held == 0 {
            side.writable = false;
        }
        side.held += 1;
        true
    }

    /// Sends the held-back messages for which there is room now.
    pub(super) fn send_held(&mut self, at: usize) {
        let side = &mut self.sides[at];
        let first = side.sent;
        let sent = side.conn.held_room().and_then(|room| {
            let count = side.held.min(room.messages as u32);
            let payload: Vec<u8> = match count {
                1 => first.to_le_bytes().to_vec(),
                _ => batch(first, count),
            };
            let transmit = side.conn.send_held(count, payload.len())?;
            side.post(transmit, &payload);
            Ok(count)
        });
        match sent {
            Ok(count) => {
                side.sent += count;
                side.held -= count;
                if side.held == 0 {
                    side.conn.release_ending();
                }
            }
            Err(SendRefused::Blocked) => side.writable = false,
            Err(_) => side.held = 0,
        }
    }

    /// Releases a message that the application holds: the oldest one if `oldest` is true, otherwise
    /// the newest one.
    pub(super) fn release(&mut self, at: usize, oldest: bool) {
        let side = &mut self.sides[at];
        let kept = if oldest {
            side.kept.pop_front()
        } else {
            side.kept.pop_back()
        };
        if side.ended.is_none() {
            match kept {
                Some(Kept::Buffer(buffer)) if side.conn.accepts_receives() => {
                    side.repost(buffer);
                    let releasing = side
                        .conn
                        .releasing()
                        .expect("the connection accepts receives");
                    let settled = releasing.release(self.now);
                    assert!(
                        !settled || side.conn.is_settled(),
                        "no output may be pending after `release` has returned true"
                    );
                }
                Some(Kept::Part(buffer)) => {
                    let left = side.batches.get_mut(&buffer).unwrap();
                    *left -= 1;
                    if side.conn.accepts_receives() {
                        if *left == 0 {
                            side.repost(buffer);
                        }
                        side.conn.release(self.now);
                    }
                }
                Some(Kept::Large(len)) => side.conn.release_large(len, self.now),
                Some(Kept::Buffer(_)) => {
                    assert!(
                        side.conn.releasing().is_none(),
                        "a connection that accepts no receives must not return a `Releasing`"
                    )
                }
                None => {}
            }
        }
        self.perform_outputs(at);
    }

    pub(super) fn release_all(&mut self, at: usize) {
        while !self.sides[at].kept.is_empty() {
            self.release(at, true);
        }
    }

    pub(super) fn close(&mut self, at: usize) {
        self.sides[at].conn.close(self.now);
        self.perform_outputs(at);
    }

    pub(super) fn abort(&mut self, at: usize, code: u32) {
        self.sides[at].conn.abort(code, self.now);
        self.perform_outputs(at);
    }

    pub(super) fn reject_untaken(&mut self, at: usize) {
        self.sides[at].conn.reject_untaken(self.now);
        self.perform_outputs(at);
    }

    /// Kills this side's process. The kernel destroys the queue pair and disconnects.
    pub(super) fn kill(&mut self, at: usize) {
        self.sides[at].killed = true;
        self.sides[at].ended = Some((CloseReason::LocallyAborted, false));
        self.sides[at].enter_error_state();
        self.report_disconnected(1 - at);
    }

    pub(super) fn report_disconnected(&mut self, at: usize) {
        let side = &mut self.sides[at];
        if !std::mem::replace(&mut side.disconnected, true) {
            side.cm.push_back(Cm::Disconnected);
        }
    }

    /// Makes this side's host fail, so that it neither sends nor receives anything.
    pub(super) fn vanish(&mut self, at: usize) {
        self.sides[at].killed = true;
        self.sides[at].ended = Some((CloseReason::LocallyAborted, false));
        self.sides[at].enter_error_state();
        self.sides[1 - at].disconnected = true;
    }

    /// Removes this side's device.
    pub(super) fn remove_device(&mut self, at: usize) {
        let side = &mut self.sides[at];
        if !std::mem::replace(&mut side.removed, true) {
            side.disconnected = true;
            side.enter_error_state();
            side.cm.push_back(Cm::DeviceRemoval);
        }
    }

    /// Makes this side's oldest send fail with this status.
    pub(super) fn fail_send(&mut self, at: usize, status: WcStatus) {
        let side = &mut self.sides[at];
        let slot = *side.slots.front().expect("a send is in flight");
        side.conn
            .handle_work_error(Work::Send { slot }, status, 0x81, self.now);
        self.perform_outputs(at);
    }

    pub(super) fn reason(&self, at: usize) -> &CloseReason {
        &self.sides[at].ended.as_ref().expect("the side has ended").0
    }

    pub(super) fn delivered(&self, at: usize) -> bool {
        self.sides[at].ended.as_ref().expect("the side has ended").1
    }

    /// Puts a forged Rendezvous frame with this descriptor on the wire.
    pub(super) fn forge_large(&mut self, from: usize, descriptor: &Descriptor) {
        let header = Header {
            kind: Kind::Rendezvous,
            sequence: 0,
            grant: self.sides[from].params.window.into(),
            len: 24,
            arg: 0,
        };
        self.forge(from, &[&header.emit()[..], &descriptor.emit()].concat());
    }

    /// Sends a Ping. The Pong proves that the peer has processed everything sent before the Ping.
    pub(super) fn flush(&mut self, at: usize) -> Flush {
        let flush = self.sides[at]
            .conn
            .flush()
            .expect("the connection is established");
        self.perform_outputs(at);
        flush
    }

    /// Puts a forged frame on the wire, with the next sequence number.
    pub(super) fn forge(&mut self, from: usize, frame: &[u8]) {
        let mut frame = frame.to_vec();
        if let Some((open, _)) = self.sides[from].conn.open()
            && let Some(number) = frame.get_mut(2..4)
        {
            number.copy_from_slice(&open.transfer.sequence.send().to_be_bytes());
        }
        self.put_on_wire(from, frame);
    }

    /// Puts these bytes on the wire unchanged.
    pub(super) fn put_on_wire(&mut self, from: usize, frame: Vec<u8>) {
        self.sides[from].sending.push_back(InFlight {
            slot: u32::MAX,
            signalled: false,
            what: WorkKind::Frame(frame),
        });
    }
}

/// Returns the payload of a batch of `count` messages, whose numbers begin at `first`.
fn batch(first: u32, count: u32) -> Vec<u8> {
    (first..)
        .take(count as usize)
        .flat_map(|number| [4_u32.to_be_bytes(), number.to_le_bytes()].concat())
        .collect()
}
