//! What a [`Stream`](crate::Stream) needs of its endpoint.

use std::{
    io::IoSlice,
    sync::atomic::{AtomicBool, Ordering},
};

use super::Endpoint;
use crate::{
    Error, Message, TrySendError,
    link::{Deadline, Handoff},
};

impl Endpoint {
    /// Takes some of the bytes of these parts, of which there is at least one, and returns how
    /// many.
    pub(crate) fn try_write_bytes(&self, parts: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        self.try_in_room(|| self.inner.link.try_write(parts))
    }

    /// As [`try_write_bytes`](Self::try_write_bytes), and waits for room.
    pub(crate) fn write_bytes(
        &self,
        parts: &[IoSlice<'_>],
        deadline: &Deadline,
    ) -> Result<usize, Error> {
        let link = &self.inner.link;
        match link.try_write(parts) {
            Ok(count) => Ok(count),
            Err(TrySendError::Failed(error)) => Err(error),
            Err(TrySendError::Full) => self.wait_for_room(deadline, || link.try_write(parts)),
        }
    }

    /// Receives a message; returns `None` when `stopped` is set, which a
    /// [`wake`](Self::wake_waiting) makes known.
    pub(crate) fn recv_unless(
        &self,
        stopped: &AtomicBool,
        deadline: &Deadline,
    ) -> Result<Option<Message>, Error> {
        let handoff = Handoff::default();
        self.inner
            .link
            .wait_until(deadline, Some(&handoff), || {
                let received = self.take_from(&handoff).map(|received| received.map(Some));
                let stopped = || stopped.load(Ordering::Acquire).then_some(Ok(None));
                received.or_else(stopped)
            })
            .unwrap_or(Err(Error::TimedOut))
    }

    /// Has waiting threads look again.
    pub(crate) fn wake_waiting(&self) {
        self.inner.link.wake();
    }

    /// Keeps the fd readable for something that was received and is not used up, or no more.
    pub(crate) fn keep_readable(&self, readable: bool) {
        let set_aside = &self.inner.link.set_aside;
        if readable {
            set_aside.fetch_add(1, Ordering::Relaxed);
        } else {
            set_aside.fetch_sub(1, Ordering::Relaxed);
        }
        self.update_readiness();
    }
}
