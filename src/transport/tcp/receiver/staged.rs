//! Processes the bytes in the staging buffer.
#![allow(unsafe_code)]

use std::ptr;

use super::{Fault, LONG, Parts, Receiver};
use crate::{
    proto::{
        HEADER_LEN, rest_of_message,
        tcp::{Cause, PREFIX, Pdu},
    },
    status::WcStatus,
    transport::{
        queues::{Done, WorkId},
        tcp::incoming_payload::{IncomingPayload, Place},
    },
};

/// The reason why the processing of staged bytes has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Staged {
    /// The next step needs bytes that are not staged.
    NeedsBytes,
    /// The caller has to hand over the completions before it receives more bytes.
    Stopped,
}

impl Receiver {
    /// Processes staged bytes until a PDU is incomplete, or `done` contains `enough` completions.
    /// Also ends before a long fragment, if `done` contains completions and no memory is known for
    /// the fragment: the owner of these completions may then place the fragment.
    pub(super) fn take_staged(
        &mut self,
        parts: &mut Parts<'_>,
        enough: usize,
    ) -> Result<Staged, Fault> {
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
                    return Ok(Staged::NeedsBytes);
                }
                self.payload_received(0, parts)?;
                continue;
            }
            match Pdu::parse(&self.staged[self.unread.clone()])? {
                Some((Pdu::Send { len, .. }, prefix)) if !self.may_begin(prefix, len) => {
                    return Ok(Staged::NeedsBytes);
                }
                Some((Pdu::Send { len, .. }, prefix))
                    if !parts.done.is_empty() && self.may_be_placed(prefix, len, parts) =>
                {
                    return Ok(Staged::Stopped);
                }
                Some((pdu, len)) => {
                    self.unread.start += len;
                    self.begin(pdu, parts)?;
                }
                None => return Ok(Staged::NeedsBytes),
            }
        }
        Ok(Staged::Stopped)
    }

    /// Returns whether the header of a frame of `len` bytes is staged behind its PDU header of
    /// `prefix` bytes.
    fn may_begin(&self, prefix: usize, len: u32) -> bool {
        self.unread.len() - prefix >= HEADER_LEN.min(len as usize)
    }

    /// Returns whether a staged PDU header of `prefix` bytes precedes a long fragment of `len`
    /// bytes whose memory is not known yet.
    fn may_be_placed(&self, prefix: usize, len: u32, parts: &Parts<'_>) -> bool {
        let frame = &self.staged[self.unread.clone()][prefix..];
        len as usize >= LONG
            && rest_of_message(frame).is_some()
            && !self.fragments.has_memory(parts.placement)
    }

    /// Begins to receive a frame of `len` bytes. If the frame is a fragment whose memory is known,
    /// its payload is received there.
    pub(super) fn begin_frame(
        &mut self,
        len: u32,
        signalled: bool,
        parts: &mut Parts<'_>,
    ) -> Result<(), Fault> {
        let receive = self.take_receive(parts)?;
        let mut left = len as usize;
        if left > receive.to.len {
            if let WorkId::Recv(buffer) = receive.id {
                parts.done.push_back(Done::ReceiveFailed {
                    buffer,
                    status: WcStatus::LOC_LEN_ERR,
                    vendor_err: 0,
                });
            }
            return Err(self.refuse(Cause::TooLong, parts));
        }
        self.long = left >= LONG;
        let place = self.staged_fragment(left).and_then(|rest| {
            let payload = left - HEADER_LEN;
            self.fragments.begin(rest, payload, parts.placement)
        });
        let to = match place {
            Some(to) => {
                let header = &self.staged[self.unread.start..][..HEADER_LEN];
                // SAFETY: a posted receive refers to mapped memory of `to.len` bytes, which the
                // frame and its header do not exceed. Only the queue pair accesses this memory
                // until the receive completes, so it does not overlap the staging buffer.
                unsafe {
                    ptr::copy_nonoverlapping(header.as_ptr(), receive.to.start, HEADER_LEN);
                }
                self.unread.start += HEADER_LEN;
                left -= HEADER_LEN;
                Place::Fragment {
                    receive,
                    to,
                    signalled,
                }
            }
            None => Place::Receive {
                receive,
                len,
                signalled,
            },
        };
        self.incoming = Some(IncomingPayload { left, to });
        Ok(())
    }

    /// If the staged bytes begin with a Fragment frame of `len` bytes, returns the number of bytes
    /// from the start of its payload to the end of its message.
    fn staged_fragment(&self, len: usize) -> Option<u32> {
        let staged = &self.staged[self.unread.clone()];
        rest_of_message(&staged[..staged.len().min(len)])
    }

    /// Executes the Send at the beginning of the staged bytes, and returns true. This requires that
    /// all bytes of the Send are staged and fit into a posted receive, that the frame is no
    /// fragment, and that no earlier payload or WRITE is incomplete. Otherwise returns false, and
    /// [`take_staged`](Self::take_staged) handles the bytes.
    #[inline]
    fn take_staged_frame(&mut self, parts: &mut Parts<'_>) -> bool {
        if self.incoming.is_some() || self.writes.is_unfinished() {
            return false;
        }
        let Some((signalled, frame)) = Pdu::whole_send(&self.staged[self.unread.clone()]) else {
            return false;
        };
        if rest_of_message(frame).is_some() {
            return false;
        }
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
