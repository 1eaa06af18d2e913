//! Processes the bytes in the staging buffer.
#![allow(unsafe_code)]

use std::ptr;

use super::{Fault, Parts, Receiver};
use crate::{
    proto::tcp::{PREFIX, Pdu},
    transport::queues::{Done, WorkId},
};

impl Receiver {
    /// Processes staged bytes until a PDU is incomplete, or `done` contains `enough` completions.
    pub(super) fn take_staged(
        &mut self,
        parts: &mut Parts<'_>,
        enough: usize,
    ) -> Result<(), Fault> {
        while parts.done.len() < enough {
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
                    self.unread.start += len;
                    self.begin(pdu, parts)?;
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Executes the Send at the beginning of the staged bytes, and returns true. This requires that
    /// all bytes of the Send are staged and fit into a posted receive, and that no earlier payload
    /// or WRITE is incomplete. Otherwise returns false, and [`take_staged`](Self::take_staged)
    /// handles the bytes.
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
        // not exceed (checked above). Only the queue pair accesses this memory until the receive
        // completes, so it does not overlap the staging buffer.
        unsafe { ptr::copy_nonoverlapping(frame.as_ptr(), receive.to.start, frame.len()) };
        self.unread.start += PREFIX + frame.len();
        self.long = false;
        // The cast is lossless, because a frame in the staging buffer is shorter than 16 KiB.
        let len = frame.len() as u32;
        parts.done.push_back(Done::Received { buffer, len });
        self.request_completed(signalled, parts);
        true
    }
}
