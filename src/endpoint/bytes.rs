//! What a [`Stream`](crate::Stream) needs of its endpoint.

use std::{
    io::IoSlice,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
};

use super::{Endpoint, Inner};
use crate::{
    CloseReason, Error, Message, TrySendError,
    link::{Awaited, Deadline, Handoff, total},
};

/// How many bytes may be written after the peer has closed, before writes fail: some of what a
/// socket takes before it hears of the reset.
const MOST_LATE: usize = 64 << 10;

impl Endpoint {
    /// Takes some of the bytes of these parts, of which there is at least one, and returns how
    /// many.
    pub(crate) fn try_write_bytes(&self, parts: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        self.try_in_room(|| self.write_some(parts))
    }

    /// As [`try_write_bytes`](Self::try_write_bytes), and waits for room.
    pub(crate) fn write_bytes(
        &self,
        parts: &[IoSlice<'_>],
        deadline: &Deadline,
    ) -> Result<usize, Error> {
        match self.write_some(parts) {
            Ok(count) => Ok(count),
            Err(TrySendError::Failed(error)) => Err(error),
            Err(TrySendError::Full) => self.wait_for_room(deadline, || self.write_some(parts)),
        }
    }

    /// As [`try_write_bytes`](Self::try_write_bytes), for a task.
    pub(crate) fn poll_write_bytes(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.poll_for_room(cx, Awaited::Room.common(), || self.write_some(parts))
    }

    /// A peer may close behind bytes that are still to be read here, and who reads them may write
    /// in between: many a program that was told of the end then would read no further. So until
    /// the end has been read too, what is written goes nowhere, as it does where a socket's peer
    /// has closed and its reset is under way.
    pub(super) fn write_some(&self, parts: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        match self.inner.link.try_write(parts) {
            Err(TrySendError::Failed(Error::Disconnected(CloseReason::PeerClosed)))
                if self.is_unread() =>
            {
                self.write_late(total(parts))
            }
            written => written,
        }
    }

    /// Whether something is to be taken before the connection's end, which has a completion too.
    fn is_unread(&self) -> bool {
        let Inner {
            link, completions, ..
        } = &*self.inner;
        link.goes_on() || completions.len() > usize::from(link.is_over())
    }

    /// Has writes after the peer's close fail from the start, because this side has ended its
    /// direction.
    pub(super) fn refuse_late_writes(&self) {
        self.inner.late.store(MOST_LATE, Ordering::Relaxed);
    }

    fn write_late(&self, len: usize) -> Result<usize, TrySendError> {
        // What others write at the same time counts as well.
        let after = |before: usize| MOST_LATE.min(before.saturating_add(len));
        let all = |before| (before < MOST_LATE).then(|| after(before));
        match (self.inner.late).fetch_update(Ordering::Relaxed, Ordering::Relaxed, all) {
            Ok(before) => Ok(after(before) - before),
            Err(_) => Err(Error::Disconnected(CloseReason::PeerClosed).into()),
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
