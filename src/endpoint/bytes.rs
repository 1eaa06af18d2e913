//! Methods of an endpoint that implement [`Stream`](crate::Stream).

use std::{
    io::IoSlice,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
};

use super::{Endpoint, Inner};
#[cfg(feature = "tokio")]
use crate::poll::WaiterId;
use crate::{
    error::{Error, TrySendError},
    link::{Awaited, Deadline, Handoff, Inflow, Message, total},
    proto::CloseReason,
};

/// The maximum number of bytes that writes accept and discard after the peer has closed the stream.
/// Further writes fail. A TCP socket also accepts some bytes until the peer's reset arrives.
const MAX_LATE: usize = 64 << 10;

impl Endpoint {
    /// Makes the connection a stream. Messages that have already arrived become part of the stream.
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
    /// Returns the next message of a stream. `taken` is the item, if any, that the caller has
    /// removed from the completion queue. If `taken` reports the end of the stream, the messages in
    /// `inflow` are returned before the end.
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
            // Report the peer's Finish first, even if `end` is a later event. An earlier call may
            // have removed the Finish from the completion queue, and then returned a message of
            // `inflow` in its place.
            return Some(Err(Error::PeerFinished));
        }
        Some(end)
    }

    /// Removes the oldest message from the unread bytes of a stream, and returns it.
    pub(crate) fn take_bytes(&self) -> Option<Message> {
        let message = self.inner.inflow.get()?.take()?;
        self.update_readiness();
        Some(message)
    }

    /// Copies the first unread bytes of a stream without consuming them. Returns the number of
    /// copied bytes.
    pub(crate) fn peek_bytes(&self, to: &mut [u8]) -> usize {
        // A program might call only this method, in a loop, so this call must poll for new bytes.
        self.inner.link.poll_once();
        let inflow = self.inner.inflow.get();
        inflow.map_or(0, |inflow| inflow.copy_to(to))
    }

    /// Writes bytes from the start of `parts`, which must contain at least one byte. Returns the
    /// number of bytes written.
    pub(crate) fn try_write_bytes(&self, parts: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        self.try_in_room(|| self.write_some(parts))
    }

    /// Writes like [`try_write_bytes`](Self::try_write_bytes), but waits for room.
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

    /// Writes like [`try_write_bytes`](Self::try_write_bytes), for a task.
    pub(crate) fn poll_write_bytes(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.poll_for_room(cx, Awaited::Room.common(), || self.write_some(parts))
    }

    /// Writes some of the bytes. After the peer has closed the stream, discards up to [`MAX_LATE`]
    /// bytes without an error, until the application has read to the end of the stream. The reason
    /// is that many programs would stop reading after a write error. A TCP socket also accepts
    /// writes until the peer's reset arrives.
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

    /// Makes writes fail immediately once the peer has closed the stream, so that no more bytes are
    /// discarded. Called when this side has finished sending.
    pub(super) fn refuse_late_writes(&self) {
        self.inner.late.store(MAX_LATE, Ordering::Relaxed);
    }

    fn write_late(&self, len: usize) -> Result<usize, TrySendError> {
        // All threads share the counter, so their concurrent writes together discard at most
        // `MAX_LATE` bytes.
        let after = |before: usize| MAX_LATE.min(before.saturating_add(len));
        let all = |before| (before < MAX_LATE).then(|| after(before));
        match (self.inner.late).fetch_update(Ordering::Relaxed, Ordering::Relaxed, all) {
            Ok(before) => Ok(after(before) - before),
            Err(_) => Err(Error::Disconnected(CloseReason::PeerClosed).into()),
        }
    }

    /// Receives a message, or returns `None` when `stopped` is set. A thread that sets `stopped`
    /// must then call [`wake_waiting`](Self::wake_waiting).
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

    /// Wakes the threads that wait on this connection, so that they check their conditions again.
    pub(crate) fn wake_waiting(&self) {
        self.inner.link.wake();
    }

    /// Sets whether the fd for event loops stays readable even if the endpoint has no completion. A
    /// stream sets this while it has a message that the program has read only in part.
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
    /// Returns whether a stream has unread bytes.
    pub(super) fn has_bytes(&self) -> bool {
        let inflow = self.inflow.get();
        inflow.is_some_and(|inflow| !inflow.is_empty())
    }
}

/// Reports the readiness of a stream to tasks.
#[cfg(feature = "tokio")]
impl Endpoint {
    /// Returns true if a nonblocking receive could return a message or the end of the stream. If
    /// the queue contains only completions of other kinds, the receive removes them and returns
    /// nothing.
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

    /// Returns whether a write of `len` bytes would accept at least one byte, or fail with an
    /// error. If the result is false, [`Awaited::Room`] is reported when a write may succeed.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.inner.link.has_room_to_write(len)
    }

    /// Writes like [`try_write_bytes`](Self::try_write_bytes), but requests no report of room after
    /// a refusal: no completion is delivered, and no file descriptor becomes readable.
    pub(crate) fn write_now(&self, parts: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        match self.write_some(parts) {
            Err(TrySendError::Full) => {
                // A completion that no thread has polled yet may contain a grant.
                self.inner.link.poll_once();
                self.write_some(parts)
            }
            written => written,
        }
    }

    /// Calls `ready` until it returns a value. Each event that the task awaits triggers another
    /// call.
    pub(crate) fn poll_until<T>(
        &self,
        cx: &mut Context<'_>,
        waiter: (WaiterId, Awaited),
        ready: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        self.inner.link.poll_task(cx, waiter, None, ready)
    }
}
