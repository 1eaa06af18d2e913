//! What streams write: bytes, which need not be messages of their own.

use std::{io::IoSlice, sync::Arc};

use super::{core::Core, cork::total, link::Link, reports::refused_send, send::Sending};
use crate::{
    error::{Error, TrySendError},
    proto::{SendRefused, Transmit},
};

/// The longest write that joins others beyond a frame. A longer write waits instead, because
/// another copy of its bytes costs more than a wait for a peer that reads.
const LONGEST_TO_JOIN: usize = 16 << 10;

impl Link {
    /// Takes some of the bytes of these parts, of which there is at least one, and returns how
    /// many.
    pub(crate) fn try_write(
        self: &Arc<Self>,
        parts: &[IoSlice<'_>],
    ) -> Result<usize, TrySendError> {
        let (written, holds) = self.with_core(|core| (core.try_write(parts), core.holds_back()));
        if holds {
            self.leave_held();
        }
        if let Some(written) = written? {
            return Ok(written);
        }
        let piece = self.send_limit().min(self.core().conn.stream_piece());
        self.try_write_large(parts, usize::try_from(piece).unwrap_or(usize::MAX))
    }

    /// Returns whether a write of `len` bytes takes some of them, or fails.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_room_to_write(self: &Arc<Self>, len: usize) -> bool {
        self.with_core(|core| {
            if core.ended.is_some() {
                return true;
            }
            let limit = core.conn.negotiated().map_or(0, |both| both.send_limit);
            let piece = usize::try_from(limit.min(core.conn.stream_piece()));
            match core.conn.may_send(len.min(piece.unwrap_or(usize::MAX))) {
                Ok(()) => !core.holds_back() || core.may_join(len),
                Err(SendRefused::Blocked) => core.may_join(len),
                Err(_) => true,
            }
        })
    }

    /// Sends a large message of at most this length.
    fn try_write_large(
        self: &Arc<Self>,
        parts: &[IoSlice<'_>],
        longest: usize,
    ) -> Result<usize, TrySendError> {
        let mut room = longest;
        let whole = parts
            .iter()
            .take_while(|part| {
                let fits = part.len() <= room;
                room = room.saturating_sub(part.len());
                fits
            })
            .count();
        let (whole, rest) = parts.split_at(whole);
        let len = total(whole);
        if let (0, Some(part)) = (len, rest.first()) {
            let part = IoSlice::new(&part[..longest]);
            self.try_send(&mut Sending::new(&[part], None))?;
            return Ok(longest);
        }
        self.try_send(&mut Sending::new(whole, None))?;
        Ok(len)
    }
}

impl Core {
    /// Takes some of these bytes, and returns how many; `None` if they make a large message.
    fn try_write(&mut self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, TrySendError> {
        self.check_not_ended()?;
        let len = total(parts);
        if !self.conn.is_eager(len) {
            return Ok(None);
        }
        let sent = self.conn.may_send(len).and_then(|()| {
            self.uncork();
            self.conn.send(len)
        });
        match sent {
            Ok(transmit) => self.post_bytes(&transmit, parts).map(|()| Some(len)),
            Err(SendRefused::Blocked) => {
                let most = self.most_held_back(len);
                match self.hold_back(|cork, longest| cork.extend(parts, longest, most)) {
                    0 => Err(TrySendError::Full),
                    taken => Ok(Some(taken)),
                }
            }
            Err(refused) => Err(refused_send(refused, len)),
        }
    }

    /// Returns the number of bytes that may be held back for a write of `len` bytes to join, if it
    /// is more than a frame.
    fn most_held_back(&self, len: usize) -> usize {
        if len > LONGEST_TO_JOIN {
            return 0;
        }
        usize::try_from(self.conn.most_held_back()).unwrap_or(usize::MAX)
    }

    /// Whether some of `len` bytes may join the bytes that are held back.
    #[cfg(feature = "tokio")]
    fn may_join(&mut self, len: usize) -> bool {
        let most = self.most_held_back(len);
        self.conn.is_eager(len) && self.hold_back(|cork, longest| cork.room(longest, most) > 0)
    }

    fn post_bytes(
        &mut self,
        transmit: &Transmit,
        parts: &[IoSlice<'_>],
    ) -> Result<(), TrySendError> {
        let Some(queues) = &mut self.queues else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        queues
            .post_send(transmit, parts, false)
            .map_err(|error| self.post_failed(error))
    }
}
