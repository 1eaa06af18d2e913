//! The queue of control frames that wait for a slot of the send ring, and the progress of this
//! side's final frame.

use std::mem;

use crate::frame::Control;

/// The control frames that must be sent as soon as slots are free: at most one of each kind.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct ControlQueue {
    /// An Abort or a Failure, with its code. It is sent before all other frames in this queue.
    notice: Option<(Control, u32)>,
    pong: bool,
    finish: bool,
    close: bool,
    close_ack: bool,
    grant: bool,
    /// Whether an Abort, a Failure or a rejection was queued. After such a frame, this side sends
    /// neither control messages nor Permits.
    is_last: bool,
    /// Whether the driver holds back messages that must be sent before a Finish or a Close.
    held: bool,
    close_sent: bool,
    final_frame: FinalFrame,
}

/// The progress of this side's final frame: a CloseAck, an Abort, a Failure or a rejection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum FinalFrame {
    #[default]
    None,
    /// The frame waits for a free slot.
    Queued,
    /// The frame has been posted in this slot.
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

    /// Queues an Abort or a Failure. The caller has dropped all other queued frames.
    pub(super) fn queue_notice(&mut self, control: Control, code: u32) {
        self.notice = Some((control, code));
        self.is_last = true;
        self.final_frame = FinalFrame::Queued;
    }

    /// Records that this side's final frame is an Answer that rejects the request. The caller has
    /// dropped all queued frames, and queues the Answer after this call.
    pub(super) fn queue_rejection(&mut self) {
        self.is_last = true;
        self.final_frame = FinalFrame::Queued;
    }

    /// Records that a Request or an Answer is posted in this slot. An Answer that rejects the
    /// request is this side's final frame.
    pub(super) fn posted_answer(&mut self, slot: u32) {
        if self.final_frame == FinalFrame::Queued {
            self.final_frame = FinalFrame::Sent(slot);
        }
    }

    /// Delays any Finish, Close and CloseAck until [`release_ending`](Self::release_ending) is
    /// called.
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

    /// Returns whether control messages and Permits may be sent.
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

    /// Removes and returns the next frame to send, with its code if it is an Abort or a Failure.
    /// Drops a queued Grant if `grant_due` is false, because another frame has carried the grant.
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

    /// Records that a frame of this kind is posted in this slot.
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

    /// Returns whether this side's Close has been posted.
    pub(super) fn is_close_sent(&self) -> bool {
        self.close_sent
    }

    /// Returns whether this side's final frame has been queued or posted.
    pub(super) fn has_final_frame(&self) -> bool {
        self.final_frame != FinalFrame::None
    }

    /// Returns whether the peer's device has acknowledged this side's final frame.
    pub(super) fn is_final_frame_acknowledged(&self) -> bool {
        self.final_frame == FinalFrame::Acknowledged
    }
}
