//! Sends frames to the socket in the call that posts them.
#![allow(unsafe_code)]

use std::ptr;

use super::SendQueue;
use crate::{
    proto::tcp,
    status::OsError,
    transport::{
        queues::{Frame, SendOp, WorkId},
        tcp::{
            socket::{Moved, Socket, Span},
            writing::{Payload, Then},
        },
    },
};

impl SendQueue {
    /// Sends a frame with at most one payload part. The queue must have no other bytes to send.
    /// Bytes that do not fit into the socket's send buffer are copied to the memory at the address
    /// that `slot` returns. If `slot` fails, the frame is not posted, but a part of it may have
    /// been sent.
    ///
    /// # Safety
    ///
    /// The memory from `slot` has the length of the frame, and only the queue accesses it until the
    /// request completes.
    pub(in crate::transport::tcp) unsafe fn send_frame(
        &mut self,
        id: WorkId,
        frame: Frame<'_>,
        slot: impl FnOnce() -> Result<*mut u8, OsError>,
        signalled: bool,
        socket: &Socket,
    ) -> Result<(), OsError> {
        // The request needs no memory if the socket takes the whole frame.
        let mut memory = Span {
            start: ptr::null_mut(),
            len: frame.len,
        };
        self.post(id, SendOp::Send, memory, signalled);
        self.gather_ack();
        let len = frame.len as u32;
        self.writing.push(&tcp::Pdu::Send { signalled, len }.emit());
        if self.writing.push_short_frame(frame) {
            self.request_sent();
            self.write_gathered(socket);
            return Ok(());
        }
        self.writing
            .put(Payload::Request { at: memory }, Then::RequestSent);
        let moved = self.writing.send_frame(socket, frame);
        if self.writing.is_taken() {
            self.writing.clear();
            self.request_sent();
            return Ok(());
        }
        memory.start = slot().inspect_err(|_| {
            self.requests.pop_back();
            self.writing.clear();
        })?;
        // SAFETY: the caller guarantees the conditions on the memory.
        unsafe { frame.copy_rest_to(memory.start, self.writing.taken_of_payload()) };
        if let Some(request) = self.requests.back_mut() {
            request.memory = memory;
        }
        self.writing
            .put(Payload::Request { at: memory }, Then::RequestSent);
        self.blocked = moved != Moved::Ended;
        Ok(())
    }

    /// Sends frames with one system call. The queue must have no other bytes to send. Bytes of a
    /// frame that do not fit into the socket's send buffer are copied to the memory at the address
    /// that `slot` returns for the frame's index. If `slot` fails, this frame and all later frames
    /// are not posted, but a part of this frame may have been sent.
    ///
    /// # Safety
    ///
    /// The memory that `slot` returns for a frame has the length of this frame, and only the queue
    /// accesses it until the request completes.
    pub(in crate::transport::tcp) unsafe fn send_frames(
        &mut self,
        frames: &[(WorkId, Frame<'_>, bool)],
        slot: impl Fn(usize) -> Result<*mut u8, OsError>,
        socket: &Socket,
    ) -> Result<(), OsError> {
        self.gather_ack();
        let pdu = |&(_, frame, signalled): &(WorkId, Frame<'_>, bool)| {
            let len = frame.len as u32;
            tcp::Pdu::Send { signalled, len }.emit()
        };
        let pdus: Vec<_> = frames.iter().map(|frame| (pdu(frame), frame.1)).collect();
        let (mut taken, moved) = self.writing.send_frames(socket, &pdus);
        for (number, (&(id, frame, signalled), (header, _))) in frames.iter().zip(&pdus).enumerate()
        {
            let mut memory = Span {
                start: ptr::null_mut(),
                len: frame.len,
            };
            let before = header.bytes().len();
            if let Some(more) = taken.checked_sub(before + frame.len) {
                self.post(id, SendOp::Send, memory, signalled);
                self.request_sent();
                taken = more;
                continue;
            }
            memory.start = slot(number)?;
            // SAFETY: the caller guarantees the conditions on the memory.
            unsafe { frame.copy_rest_to(memory.start, taken.saturating_sub(before)) };
            self.post(id, SendOp::Send, memory, signalled);
            if taken > 0 {
                self.writing.resume(header, memory, taken);
            }
            taken = 0;
            self.blocked = moved != Moved::Ended;
        }
        Ok(())
    }
}
