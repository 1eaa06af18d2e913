//! Bytes of a stream that were written while the window was full.
//!
//! They go into the [`Cork`], in several frames up to the size of the stream's send buffer, and
//! leave when the peer grants credits. So a writer that is faster than its reader sends long
//! frames. Only writes up to 16 KiB join beyond one frame: a copy of a longer write costs more than
//! a wait. Held bytes leave before a Finish and a Close, and a flush waits for them.
//!
//! The writer may not return, and if the engine took the connection over for each pile, its thread
//! would wake twice. So the engine looks every 1 ms while a connection holds bytes.

use std::{io::IoSlice, sync::Arc};

use super::{core::Core, cork::Cork, link::Link, reports::refused_send};
use crate::{
    error::Error,
    proto::{self, SendRefused},
};

/// A point in the stream of what was sent.
#[derive(Debug)]
pub(crate) enum Flush {
    /// This much of what was held back has to leave first.
    Held(u64),
    /// The peer was asked.
    Asked(proto::Flush),
}

impl Link {
    /// Something is held back, and this thread may not come back: somebody has to see soon that
    /// there is room.
    pub(super) fn leave_held(&self) {
        self.poller.press();
    }

    /// Starts to find out whether the peer has all that was sent so far.
    pub(crate) fn flush(self: &Arc<Self>) -> Result<Flush, Error> {
        self.with_core(Core::flush)
    }

    /// Whether the peer has everything from before `flush`, or never will.
    pub(crate) fn is_flushed(self: &Arc<Self>, flush: &mut Flush) -> Option<Result<(), Error>> {
        if let Flush::Held(joined) = *flush {
            let asked = self.with_core(|core| core.cork.has_let_go(joined).then(|| core.ask()));
            match asked {
                Some(Ok(asked)) => *flush = asked,
                Some(Err(error)) => return Some(Err(error)),
                None => {}
            }
        }
        let core = self.core();
        match flush {
            Flush::Asked(asked) if core.conn.is_flushed(asked) => return Some(Ok(())),
            Flush::Asked(_) | Flush::Held(_) => {}
        }
        let ended = core.ended.as_ref()?;
        Some(Err(Error::Disconnected(ended.reason.clone())))
    }
}

impl Core {
    /// Whether there is something that is to be sent before anything else.
    pub(super) fn holds_back(&self) -> bool {
        !self.cork.is_empty()
    }

    /// Lets something join what is held back, up to the longest that a frame takes.
    pub(super) fn hold_back<T: Default>(&mut self, join: impl FnOnce(&mut Cork, usize) -> T) -> T {
        let sides = self.conn.negotiated();
        let longest = sides.map_or(0, |sides| sides.send_eager as usize);
        if !self.conn.hold() {
            return T::default();
        }
        let taken = join(&mut self.cork, longest);
        if self.cork.is_empty() {
            self.conn.let_go();
        }
        taken
    }

    /// Sends what was held back, as far as there is room for it. Returns whether something was
    /// sent.
    pub(super) fn uncork(&mut self) -> bool {
        let mut sent = false;
        while self.holds_back() {
            match self.uncork_some() {
                Ok(()) => sent = true,
                // Or the peer takes nothing any more: then what is here was not delivered.
                Err(_) => break,
            }
        }
        sent
    }

    fn uncork_some(&mut self) -> Result<(), SendRefused> {
        let room = self.conn.held_room()?;
        let front = self.cork.front(room);
        let payload = self.cork.payload(front);
        // No more than a frame has places for.
        let transmit = self.conn.send_held(front.count as u32, payload.len())?;
        if let Some(queues) = &mut self.queues
            && let Err(error) = queues.post_send(&transmit, &[IoSlice::new(payload)], false)
        {
            // The end of the connection, which says so.
            self.post_failed(error);
        }
        self.cork.let_go(front);
        if self.cork.is_empty() {
            self.conn.let_go();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<Flush, Error> {
        self.check_not_ended()?;
        if self.holds_back() {
            return Ok(Flush::Held(self.cork.joined()));
        }
        self.ask()
    }

    fn ask(&mut self) -> Result<Flush, Error> {
        let asked = self.conn.flush();
        asked
            .map(Flush::Asked)
            .map_err(|refused| refused_send(refused, 0).into())
    }
}
