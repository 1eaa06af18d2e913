//! What streams write: bytes, which need not be messages of their own.

use std::{io::IoSlice, sync::Arc};

use super::{core::Core, cork::total, link::Link, reports::refused_send, send::Outgoing};
use crate::{
    error::{Error, TrySendError},
    proto::{SendRefused, Transmit},
};

/// The longest piece of a write that is sent as one message. Several of them are under way at a
/// time, in memory that the peer may take its time to read.
const LONGEST_PIECE: usize = 1 << 20;

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
        let limit = usize::try_from(self.send_limit()).unwrap_or(usize::MAX);
        self.try_write_large(parts, limit.min(LONGEST_PIECE))
    }

    /// Returns whether a write of `len` bytes takes some of them, or fails.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_room_to_write(self: &Arc<Self>, len: usize) -> bool {
        self.with_core(|core| {
            if core.ended.is_some() {
                return true;
            }
            let limit = core.conn.negotiated().map_or(0, |both| both.send_limit);
            let piece = LONGEST_PIECE.min(usize::try_from(limit).unwrap_or(usize::MAX));
            let room = core.conn.may_send(len.min(piece));
            let refused = matches!(room, Err(SendRefused::Blocked));
            !refused && (room.is_err() || !core.holds_back())
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
            self.try_send(&mut Outgoing::new(&[part], None))?;
            return Ok(longest);
        }
        self.try_send(&mut Outgoing::new(whole, None))?;
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
                match self.hold_back(|cork, longest| cork.extend(parts, longest)) {
                    0 => Err(TrySendError::Full),
                    taken => Ok(Some(taken)),
                }
            }
            Err(refused) => Err(refused_send(refused, len)),
        }
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
