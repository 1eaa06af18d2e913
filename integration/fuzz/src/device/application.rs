//! The operations that the application performs, and the passage of time.

use std::time::Duration;

use super::Device;
use crate::proto::{
    CONTROL_SENDS, ControlRefused, Descriptor, PART_HEADER_LEN, READS, SendMethod, SendRefused,
};

/// The length in bytes of each held message.
const HELD_LEN: usize = 3;

impl Device {
    pub(crate) fn send(&mut self, len: usize) {
        if self.held > 0 {
            return;
        }
        let eager = self
            .conn
            .negotiated()
            .map_or(0, |negotiated| negotiated.send_eager);
        let result = if len <= eager as usize {
            self.conn
                .send(len)
                .map(|transmit| self.post(&transmit, len as u32))
        } else if let SendMethod::Fragments(count) = self.conn.send_method(len) {
            self.conn.may_send(len).map(|()| {
                let (len, mut offset) = (len as u32, 0);
                for _ in 0..count {
                    let sent = self.conn.send_fragment(len, offset);
                    let (transmit, here) = sent.expect("there must be a slot for each fragment");
                    self.post(&transmit, here);
                    offset += here;
                }
                assert_eq!(offset, len);
            })
        } else {
            let descriptor = Descriptor {
                addr: 1 << 40,
                len: len as u64,
                rkey: 1,
            };
            self.conn.send_large(&descriptor).map(|transmit| {
                self.lengths.push_back(descriptor.len);
                self.exposed.0 += 1;
                self.post(&transmit, 24);
            })
        };
        self.check_refusal(result.err());
    }

    /// Holds a short message, so that it can be sent later in one frame with other messages.
    pub(crate) fn hold(&mut self) {
        if self.conn.hold() {
            self.held += 1;
        }
    }

    /// Sends held messages, up to the limits of the window and of one frame.
    pub(crate) fn send_held(&mut self) {
        if self.held == 0 {
            return;
        }
        let room = match self.conn.held_room() {
            Ok(room) => room,
            Err(SendRefused::Blocked) => return,
            Err(_) => return self.drop_held(),
        };
        let count = self.held.min(room.messages as u32);
        let len = match count {
            1 => HELD_LEN,
            _ => (HELD_LEN + PART_HEADER_LEN) * count as usize,
        };
        assert!(
            len <= room.bytes,
            "a full window of held messages must fit into one frame"
        );
        let transmit = self
            .conn
            .send_held(count, len)
            .expect("the window must have room");
        self.held -= count;
        self.post(&transmit, len as u32);
        self.credit.use_for(count - 1);
        if self.held == 0 {
            self.conn.release_ending();
        }
    }

    fn drop_held(&mut self) {
        self.held = 0;
        self.conn.release_ending();
    }

    pub(crate) fn operate(&mut self, takes_receive: bool) {
        if self.held > 0 {
            return;
        }
        let result = self.conn.operate(takes_receive).map(|slot| {
            self.take_slot(slot, READS + CONTROL_SENDS, true, None);
            self.credit.use_for(takes_receive.into());
        });
        self.check_refusal(result.err());
    }

    pub(crate) fn send_control_message(&mut self, len: usize) {
        let sent = self.conn.send_control_message(&vec![7; len]);
        match sent {
            Ok(()) => self.control.use_for(1),
            Err(ControlRefused::Full) => assert_eq!(self.control.used, self.control.limit),
            Err(ControlRefused::TooLong { limit }) => assert!(len > limit as usize),
            Err(ControlRefused::NotTaken) => panic!("the peer must accept control messages"),
            Err(ControlRefused::Closed(_)) => {}
        }
    }

    pub(crate) fn ask_to_leave(&mut self) {
        let refused = self.conn.ask_to_leave().err();
        assert!(matches!(refused, None | Some(ControlRefused::Closed(_))));
    }

    pub(crate) fn take_control_message(&mut self) {
        if self.untaken > 0 {
            self.untaken -= 1;
            self.conn.take_control_message();
        }
    }

    pub(crate) fn finish(&mut self) {
        let result = self.conn.finish();
        self.finished |= result.is_ok();
        self.check_refusal(result.err());
    }

    pub(crate) fn ask(&mut self) {
        let result = self.conn.flush();
        let flushed = result
            .as_ref()
            .is_ok_and(|flush| self.conn.is_flushed(flush));
        assert!(!flushed, "a flush must wait for the peer's answer");
        self.check_refusal(result.err());
    }

    fn check_refusal(&self, refused: Option<SendRefused>) {
        match refused {
            Some(SendRefused::Closed(reason)) => {
                assert_eq!(Some(&reason), self.conn.close_reason());
            }
            Some(SendRefused::TooLong { limit }) => {
                let negotiated = self.conn.negotiated().expect("a limit must be negotiated");
                assert_eq!(limit, negotiated.send_limit);
            }
            Some(SendRefused::Finished) => assert!(self.finished),
            Some(SendRefused::Blocked) | None => assert_eq!(self.ended, None),
        }
    }

    pub(crate) fn release(&mut self) {
        if let Some(buffer) = self.kept.pop_front()
            && self.conn.accepts_receives()
        {
            self.released += 1;
            // A buffer can contain several messages.
            if !self.kept.contains(&buffer) {
                self.repost(buffer);
            }
            self.conn.release(self.now);
        }
    }

    pub(crate) fn release_large(&mut self) {
        if let Some(len) = self.large.pop_front() {
            self.conn.release_large(len, self.now);
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.conn.handle_timeout(self.now);
    }
}
