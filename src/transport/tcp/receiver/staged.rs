//! Processes the bytes in the staging buffer.
#![allow(unsafe_code)]

use std::ptr;

use super::{Fault, LONG, Parts, Receiver};
use crate::{
    proto::{
        HEADER_LEN, NextFragment,
        tcp::{PREFIX, Pdu},
    },
    transport::{
        queues::{Done, WorkId},
        tcp::{
            incoming_payload::{IncomingPayload, Place},
            receive_queue::Receive,
        },
    },
};

impl Receiver {
    /// Processes staged bytes until a PDU is incomplete, or `done` contains `enough` completions.
    pub(super) fn take_staged(
        &mut self,
        parts: &mut Parts<'_>,
        enough: usize,
    ) -> Result<(), Fault> {
        while !self.is_enough(parts, enough) {
            if self.take_staged_frame(parts) {
                continue;
            }
            if let Some(incoming) = &mut self.incoming {
                let staged = &self.staged[self.unread.clone()];
                let count = staged.len().min(incoming.left);
                if count > 0 {
                    incoming.copy(&staged[..count]);
                    self.unread.start += count;
                    self.payload_received(count, parts)?;
                    continue;
                }
                if incoming.left > 0 {
                    return Ok(());
                }
                self.payload_received(0, parts)?;
                continue;
            }
            match Pdu::parse(&self.staged[self.unread.clone()])? {
                Some((pdu, len)) => {
                    let staged = self.unread.len() - len;
                    if parts.placement.is_expecting()
                        && staged < HEADER_LEN.min(pdu.payload() as usize)
                    {
                        return Ok(());
                    }
                    let was_long = self.long;
                    self.unread.start += len;
                    self.begin(pdu, parts)?;
                    if self.place(parts) {
                        self.long |= was_long;
                    }
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// If the frame that begins is the expected fragment, copies its header to the receive, and
    /// lets the payload follow into the memory of the message. Returns whether it is this fragment.
    fn place(&mut self, parts: &Parts<'_>) -> bool {
        let Some(IncomingPayload {
            left,
            to: Place::Receive {
                receive, placed, ..
            },
        }) = &mut self.incoming
        else {
            return false;
        };
        let (Some(header), Some(payload), WorkId::Recv(buffer)) = (
            self.staged[self.unread.clone()].first_chunk::<HEADER_LEN>(),
            left.checked_sub(HEADER_LEN),
            receive.id,
        ) else {
            return false;
        };
        *placed = parts.placement.take(header, payload, buffer);
        if placed.is_none() {
            return false;
        }
        // SAFETY: the receive has room for the whole frame, which has at least `HEADER_LEN` bytes
        // (checked above). Only the queue pair accesses it until the receive completes.
        unsafe { ptr::copy_nonoverlapping(header.as_ptr(), receive.to.start, HEADER_LEN) };
        *left = payload;
        self.unread.start += HEADER_LEN;
        true
    }

    /// Stops behind a frame that is a fragment, if another one follows.
    ///
    /// # Safety
    ///
    /// The receive has memory, and contains the header of the frame if `len` is at least
    /// [`HEADER_LEN`].
    #[inline]
    pub(super) unsafe fn pause_behind_fragment(&mut self, receive: &Receive, len: u32) {
        let Some(payload) = (len as usize).checked_sub(HEADER_LEN) else {
            return;
        };
        // SAFETY: the caller guarantees that the memory contains the header. No other thread
        // accesses it until a poll returns the completion, which needs the lock of this object.
        let header = unsafe { receive.to.start.cast::<[u8; HEADER_LEN]>().read() };
        if let Some(next) = NextFragment::after(&header, payload) {
            self.paused = true;
            self.long |= next.missing() as usize >= LONG;
        }
    }

    /// Executes the Send at the beginning of the staged bytes, if all of its bytes are staged and a
    /// receive is posted. Returns false otherwise; then [`take_staged`](Self::take_staged) handles
    /// the bytes.
    #[inline]
    fn take_staged_frame(&mut self, parts: &mut Parts<'_>) -> bool {
        if self.incoming.is_some() || self.writes.is_unfinished() {
            return false;
        }
        let Some((signalled, frame)) = Pdu::whole_send(&self.staged[self.unread.clone()]) else {
            return false;
        };
        let Some(receive) = parts.receives.take() else {
            return false;
        };
        let WorkId::Recv(buffer) = receive.id else {
            parts.receives.post(receive);
            return false;
        };
        if frame.len() > receive.to.len {
            parts.receives.post(receive);
            return false;
        }
        // SAFETY: a posted receive refers to mapped memory of `to.len` bytes, which the frame does
        // not exceed (checked above). Only the queue pair accesses it until the receive completes,
        // so it does not overlap the staging buffer.
        unsafe { ptr::copy_nonoverlapping(frame.as_ptr(), receive.to.start, frame.len()) };
        // The cast is lossless, because the frame is in the staging buffer.
        let len = frame.len() as u32;
        self.unread.start += PREFIX + frame.len();
        self.long = false;
        // SAFETY: the frame was copied to the receive.
        unsafe { self.pause_behind_fragment(&receive, len) };
        parts.done.push_back(Done::Received { buffer, len });
        self.request_completed(signalled, parts);
        true
    }
}
