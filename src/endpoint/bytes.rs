//! Calls of an endpoint for a [`Stream`](crate::Stream).

use std::{
    io::IoSlice,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
};

use super::{Endpoint, Inner};
#[cfg(feature = "tokio")]
use crate::poll::Seat;
use crate::{
    error::{Error, TrySendError},
    link::{Awaited, Deadline, Handoff, Inflow, Message, total},
    proto::CloseReason,
};

/// The number of bytes that may be written after the peer has closed, before writes fail. A socket,
/// too, takes some bytes before its peer's reset arrives.
const MAX_LATE: usize = 64 << 10;

impl Endpoint {
    /// Makes the connection a stream. Messages that arrived before belong to the stream, too.
    pub(crate) fn carry_bytes(&self) {
        let Inner { link, inflow, .. } = &*self.inner;
        if inflow.get().is_some() {
            return;
        }
        let inflow = inflow.get_or_init(|| link.carry_bytes());
        let mut before = Vec::new();
        while let Some(Ok(message)) = self.take() {
            before.push(message);
        }
        inflow.put_first(before);
        self.update_readiness();
    }
    /// Takes the next message of a stream, whose channel returned `taken`. Bytes in the queue
    /// arrived before an end in the channel.
    pub(super) fn take_bytes_before(
        &self,
        taken: Option<Result<Message, Error>>,
        inflow: &Inflow,
    ) -> Option<Result<Message, Error>> {
        if let Some(Ok(_)) = taken {
            return taken;
        }
        if let Some(message) = inflow.take() {
            self.update_readiness();
            return Some(Ok(message));
        }
        let end = taken?;
        self.inner.end_taken.store(true, Ordering::Relaxed);
        if self.inner.link.peer_has_finished() {
            // An earlier call may have found bytes when it took the Finish from the channel.
            return Some(Err(Error::PeerFinished));
        }
        Some(end)
    }

    /// Takes some bytes of a stream.
    pub(crate) fn take_bytes(&self) -> Option<Message> {
        let message = self.inner.inflow.get()?.take()?;
        self.update_readiness();
        Some(message)
    }

    /// Copies the first unread bytes of a stream without taking them. Returns their number.
    pub(crate) fn peek_bytes(&self, to: &mut [u8]) -> usize {
        // A thread that peeks in a loop may be the only thread that polls.
        self.inner.link.poll_once();
        let inflow = self.inner.inflow.get();
        inflow.map_or(0, |inflow| inflow.copy_to(to))
    }

    /// Takes bytes from the start of `parts`, which hold at least one, and returns the number of
    /// bytes taken.
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

    /// Writes some of the bytes. Until the application has read to the end of the stream, bytes
    /// that it writes after the peer's close are discarded, as a TCP socket does before the reset
    /// arrives: many programs would stop reading after an error.
    pub(super) fn write_some(&self, parts: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        match self.inner.link.try_write(parts) {
            Err(TrySendError::Failed(Error::Disconnected(CloseReason::PeerClosed)))
                if !self.inner.end_taken.load(Ordering::Relaxed) =>
            {
                self.write_late(total(parts))
            }
            written => written,
        }
    }

    /// Makes writes after the peer's close fail at once, because this side has ended its direction.
    pub(super) fn refuse_late_writes(&self) {
        self.inner.late.store(MAX_LATE, Ordering::Relaxed);
    }

    fn write_late(&self, len: usize) -> Result<usize, TrySendError> {
        // Concurrent writes of other threads count as well.
        let after = |before: usize| MAX_LATE.min(before.saturating_add(len));
        let all = |before| (before < MAX_LATE).then(|| after(before));
        match (self.inner.late).fetch_update(Ordering::Relaxed, Ordering::Relaxed, all) {
            Ok(before) => Ok(after(before) - before),
            Err(_) => Err(Error::Disconnected(CloseReason::PeerClosed).into()),
        }
    }

    /// Receives a message; returns `None` when `stopped` is set. The thread that sets it calls
    /// [`wake_waiting`](Self::wake_waiting) afterwards.
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

    /// Wakes the waiting threads, which check their conditions again.
    pub(crate) fn wake_waiting(&self) {
        self.inner.link.wake();
    }

    /// Sets whether the fd stays readable for a message that the program has read in part.
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

impl Inner {
    /// Whether there are bytes of a stream to be taken.
    pub(super) fn has_bytes(&self) -> bool {
        let inflow = self.inflow.get();
        inflow.is_some_and(|inflow| !inflow.is_empty())
    }
}

/// Readiness of a stream for tasks.
#[cfg(feature = "tokio")]
impl Endpoint {
    /// Returns whether a nonblocking receive may return a message or the end. The receive still
    /// returns nothing if the channel has only completions of other kinds, which it removes.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.inner.completions.is_empty() || self.inner.has_bytes() || self.peer_has_stopped()
    }

    /// Returns whether the peer has finished, or the connection has ended.
    pub(crate) fn peer_has_stopped(&self) -> bool {
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
                // The peer's grant may be in the completion queue.
                self.inner.link.poll_once();
                self.write_some(parts)
            }
            written => written,
        }
    }

    /// Waits, as a task, until `ready` returns something. Calls it again after each event that the
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
