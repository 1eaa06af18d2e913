//! Readiness of an endpoint that carries a stream.

use std::{
    io::IoSlice,
    task::{Context, Poll},
};

use super::Endpoint;
use crate::{error::TrySendError, link::Awaited, poll::Seat};

impl Endpoint {
    /// Returns whether a receive that does not wait returns something: a message, or the end. It
    /// may return nothing for a completion of another kind, which it removes.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.inner.completions.is_empty() || self.inner.has_bytes() || self.sends_no_more()
    }

    /// Returns whether the peer has finished, or the connection has ended.
    pub(crate) fn sends_no_more(&self) -> bool {
        let link = &self.inner.link;
        link.peer_has_finished() || link.is_over()
    }

    /// Returns whether the connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.inner.link.is_over()
    }

    /// Returns whether a write of `len` bytes takes some of them, or fails. If not,
    /// [`Awaited::Room`] follows when it may.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.inner.link.has_room_to_write(len)
    }

    /// As [`try_write_bytes`](Self::try_write_bytes), for a task: no completion and no file
    /// descriptor reports room after a refusal.
    pub(crate) fn write_now(&self, parts: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        match self.write_some(parts) {
            Err(TrySendError::Full) => {
                // The peer's grant may be in the queue.
                self.inner.link.poll_once();
                self.write_some(parts)
            }
            written => written,
        }
    }

    /// Waits, as a task, until `ready` returns something, which it may do after an event that the
    /// task awaits.
    pub(crate) fn poll_until<T>(
        &self,
        cx: &mut Context<'_>,
        who: (Seat, Awaited),
        ready: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        self.inner.link.poll_task(cx, who, None, ready)
    }
}
