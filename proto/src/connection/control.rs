//! The control frames that wait for a slot of the send ring, and the final frames of a connection.

use std::mem;

use crate::frame::Control;

/// The control frames to send as soon as slots are free: at most one of each kind.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct ControlQueue {
    /// An Abort or a Failure, with its code. While it is queued, no other frame is sent.
    notice: Option<(Control, u32)>,
    pong: bool,
    finish: bool,
    close: bool,
    close_ack: bool,
    grant: bool,
    /// Whether an Abort or a Failure was queued, after which nothing else is sent.
    is_last: bool,
    /// Whether messages that are held back must be sent before a Finish or a Close.
    held: bool,
    close_sent: bool,
    final_frame: FinalFrame,
}

/// The state of this side's last frame: CloseAck, Abort or Failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum FinalFrame {
    #[default]
    None,
    /// The frame is sent as soon as a slot is free.
    Queued,
    /// The frame was posted in this slot.
    Sent(u32),
    /// The peer's device has acknowledged the frame.
    Acknowledged,
}

impl ControlQueue {
    pub(super) fn queue_pong(&mut self) {
        self.pong = true;
    }

    pub(super) fn queue_grant(&mut self) {
        self.grant = true;
    }

    pub(super) fn queue_finish(&mut self) {
        self.finish = true;
    }

    pub(super) fn queue_close(&mut self) {
        self.close = true;
    }

    pub(super) fn queue_close_ack(&mut self) {
        self.close_ack = true;
        self.final_frame = FinalFrame::Queued;
    }

    /// Queues an Abort or a Failure. The caller has cancelled all other frames.
    pub(super) fn queue_notice(&mut self, control: Control, code: u32) {
        self.notice = Some((control, code));
        self.is_last = true;
        self.final_frame = FinalFrame::Queued;
    }

    /// Records that an Answer is queued that rejects the peer's request. The caller has cancelled
    /// all other frames.
    pub(super) fn queue_rejection(&mut self) {
        self.is_last = true;
        self.final_frame = FinalFrame::Queued;
    }

    /// Records that this side's last frame is posted in this slot, if it is queued.
    pub(super) fn posted_answer(&mut self, slot: u32) {
        if self.final_frame == FinalFrame::Queued {
            self.final_frame = FinalFrame::Sent(slot);
        }
    }

    /// Holds a Finish and a Close back until [`release_ending`](Self::release_ending).
    pub(super) fn hold(&mut self) {
        self.held = true;
    }

    pub(super) fn release_ending(&mut self) {
        self.held = false;
    }

    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// Whether control messages may be sent.
    pub(super) fn permits_messages(&self) -> bool {
        !self.is_last
    }

    /// Drops all queued frames.
    pub(super) fn cancel(&mut self) {
        self.notice = None;
        self.pong = false;
        self.finish = false;
        self.close = false;
        self.close_ack = false;
        self.grant = false;
        self.held = false;
    }

    /// Takes the next frame, with its code if it is an Abort or a Failure. Drops a queued grant
    /// that is not due, because another frame has already carried the grant.
    pub(super) fn pop(&mut self, grant_due: bool) -> Option<(Control, Option<u32>)> {
        if let Some((control, code)) = self.notice.take() {
            return Some((control, Some(code)));
        }
        let control = if mem::take(&mut self.pong) {
            Control::Pong
        } else if !self.held && mem::take(&mut self.finish) {
            Control::Finish
        } else if !self.held && mem::take(&mut self.close) {
            Control::Close
        } else if !self.held && mem::take(&mut self.close_ack) {
            // The CloseAck must follow this side's Close.
            Control::CloseAck
        } else if mem::take(&mut self.grant) && grant_due {
            Control::Grant
        } else {
            return None;
        };
        Some((control, None))
    }

    /// Records that a frame is posted in this slot.
    pub(super) fn posted(&mut self, control: Control, slot: u32) {
        match control {
            Control::Close => self.close_sent = true,
            Control::CloseAck | Control::Abort | Control::Failure => {
                self.final_frame = FinalFrame::Sent(slot);
            }
            Control::Grant
            | Control::Ping
            | Control::Pong
            | Control::Finish
            | Control::Permit
            | Control::Leave => {}
        }
    }

    /// Records that the peer's device has acknowledged the frame in this slot.
    #[inline]
    pub(super) fn acknowledged(&mut self, slot: u32) {
        if self.final_frame == FinalFrame::Sent(slot) {
            self.final_frame = FinalFrame::Acknowledged;
        }
    }

    /// Whether this side's Close has been posted.
    pub(super) fn is_close_sent(&self) -> bool {
        self.close_sent
    }

    /// Whether this side's last frame has been queued or sent.
    pub(super) fn has_final_frame(&self) -> bool {
        self.final_frame != FinalFrame::None
    }

    /// Whether the peer's device has acknowledged this side's last frame.
    pub(super) fn is_final_frame_acknowledged(&self) -> bool {
        self.final_frame == FinalFrame::Acknowledged
    }
}
