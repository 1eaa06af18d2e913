use std::{
    io::{self, IoSliceMut},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use ::tokio::io::{Interest, ReadBuf, Ready};
use bytes::BufMut;

use super::turn::{cooperate, take_turn};
use crate::{
    error::Error,
    link::Awaited,
    poll::WaiterId,
    stream::{Reading, StreamEnd, Turns, read_error},
};

/// The waiter id that all tasks in `poll_` methods share, and the event that they await.
const COMMON: (WaiterId, Awaited) = (Awaited::Arrival.common(), Awaited::Arrival);

/// The reading side of a stream or of one of its halves.
#[derive(Debug)]
pub(super) struct Reader {
    end: Arc<StreamEnd>,
    turns: Turns,
    /// True if the stream counts as readable. A read that finds bytes or the end of the stream sets
    /// this field, and a read that finds nothing clears it, as with tokio's own types.
    assumed: AtomicBool,
}

impl Reader {
    pub(super) fn new(end: Arc<StreamEnd>, turns: Turns) -> Self {
        Self {
            end,
            turns,
            assumed: AtomicBool::new(false),
        }
    }

    /// Makes the stream count as readable before its first read, as tokio does for an accepted
    /// socket.
    pub(super) fn assume_readable(&self) {
        self.assumed.store(true, Ordering::Relaxed);
    }

    pub(super) fn end(&self) -> &Arc<StreamEnd> {
        &self.end
    }

    pub(super) fn into_parts(self) -> (Arc<StreamEnd>, Turns) {
        (self.end, self.turns)
    }

    /// Waits for bytes or the end of the stream. The exclusive reference shows that no other task
    /// reads, so the caller needs no turn.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut Reading>> {
        let reading = self.turns.get_mut();
        let filled = cooperate(cx, |cx| {
            reading.poll_fill(cx, &self.end, self.end.stopped())
        });
        self.assumed.store(filled.is_ready(), Ordering::Relaxed);
        ready!(filled).map_err(read_error)?;
        Poll::Ready(Ok(reading))
    }

    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_fill(cx))?;
        let reading = self.turns.get_mut();
        loop {
            let bytes = reading.bytes();
            let count = bytes.len().min(buf.remaining());
            buf.put_slice(&bytes[..count]);
            reading.consume(count);
            if buf.remaining() == 0 || !reading.next_message(&self.end) {
                return Poll::Ready(Ok(()));
            }
        }
    }

    pub(super) fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.poll_fill(cx).map_ok(|reading| reading.bytes())
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.turns.get_mut().consume(count);
    }

    // The methods below take a shared reference, so each of their reads needs a turn.

    pub(super) async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        take_turn(&self.end, |cx, waiter_id| {
            let waiter = (waiter_id, Awaited::Arrival);
            self.poll_with(cx, waiter, |reading| reading.peek(&self.end, buf))
        })
        .await
    }

    pub(super) fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let peeked = cooperate(cx, |cx| {
            self.poll_with(cx, COMMON, |reading| {
                reading.peek(&self.end, buf.initialize_unfilled())
            })
        });
        peeked.map_ok(|count| {
            buf.advance(count);
            count
        })
    }

    pub(super) async fn readable(&self) {
        // If the stream counts as readable, this call does not consume the task's budget for
        // cooperative scheduling. `readable` of tokio's types does not consume it either.
        if self.assumed.load(Ordering::Relaxed) {
            return;
        }
        let end = &self.end;
        take_turn(end, |cx, waiter_id| {
            self.poll_readable(cx, (waiter_id, Awaited::Arrival))
        })
        .await;
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        cooperate(cx, |cx| self.poll_readable(cx, COMMON)).map(Ok)
    }

    pub(super) fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.try_with(|reading| reading.read(&self.end, buf))
    }

    pub(super) fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(0);
        }
        self.try_with(|reading| {
            let bufs = bufs.iter_mut();
            bufs.map(|buf| reading.read(&self.end, buf)).sum()
        })
    }

    pub(super) fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        // If `buf` is a full vector, `chunk_mut` reserves some more bytes. This read fills at most
        // the chunk that `chunk_mut` returns.
        let room = buf.chunk_mut().len();
        if room == 0 {
            return Ok(0);
        }
        self.try_with(|reading| {
            let bytes = reading.bytes();
            let count = bytes.len().min(room);
            buf.put_slice(&bytes[..count]);
            reading.consume(count);
            count
        })
    }

    /// Returns `READABLE` if `interest` includes it and the stream counts as readable.
    pub(super) fn assumed_states(&self, interest: Interest) -> Ready {
        if interest.is_readable() && self.assumed.load(Ordering::Relaxed) {
            Ready::READABLE
        } else {
            Ready::EMPTY
        }
    }

    /// Returns the current readiness of this direction, limited to `interest`.
    pub(super) fn ready_states(&self, interest: Interest) -> Ready {
        let mut states = Ready::EMPTY;
        if interest.is_readable() {
            if self.may_read() {
                states |= Ready::READABLE;
            }
            if self.end.peer_has_stopped() {
                states |= Ready::READ_CLOSED;
            }
        }
        if interest.is_error() && self.end.end_error().is_some() {
            states |= Ready::ERROR;
        }
        states
    }

    fn may_read(&self) -> bool {
        self.end.is_inherited()
            || self.turns.may_have_bytes()
            || self.end.has_arrived()
            || self.end.stopped().load(Ordering::Acquire)
    }

    /// Waits for bytes or the end of the stream. Returns immediately if the stream counts as
    /// readable.
    fn poll_readable(&self, cx: &mut Context<'_>, waiter: (WaiterId, Awaited)) -> Poll<()> {
        if self.assumed.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        self.poll_arrival(cx, waiter)
    }

    fn poll_arrival(&self, cx: &mut Context<'_>, waiter: (WaiterId, Awaited)) -> Poll<()> {
        self.end
            .poll_until(cx, waiter, || self.may_read().then_some(()))
    }

    /// Waits for bytes or the end of the stream. Then returns the result of `take`.
    fn poll_with<T>(
        &self,
        cx: &mut Context<'_>,
        waiter: (WaiterId, Awaited),
        take: impl FnOnce(&mut Reading) -> T,
    ) -> Poll<io::Result<T>> {
        if self.poll_arrival(cx, waiter).is_pending() {
            self.assumed.store(false, Ordering::Relaxed);
            return Poll::Pending;
        }
        match self.try_with(take) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Either a completion of another kind has arrived, or another task has the turn.
                // This task tries again when the runtime polls it next.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            taken => Poll::Ready(taken),
        }
    }

    /// Calls `take` and returns its result if there are bytes or the stream has ended. Fails with
    /// `WouldBlock` if there is nothing to read, or if another task has the turn.
    fn try_with<T>(&self, take: impl FnOnce(&mut Reading) -> T) -> io::Result<T> {
        if self.end.is_inherited() {
            // This process is a forked child. A thread of the parent may have held the lock during
            // the fork, so the child must not take the lock.
            return Err(Error::Forked.into());
        }
        self.assumed.store(false, Ordering::Relaxed);
        let mut reading = self.turns.take().ok_or(io::ErrorKind::WouldBlock)?;
        reading
            .fill(&self.end, self.end.stopped(), None)
            .map_err(read_error)?;
        self.assumed.store(true, Ordering::Relaxed);
        Ok(take(&mut reading))
    }
}
