use std::{
    io::{self, IoSlice},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use ::tokio::io::{Interest, Ready};

use super::turn::{cooperate, take_turn};
use crate::{
    error::{Error, TrySendError},
    link::{Awaited, total},
    poll::WaiterId,
    stream::{StreamEnd, write_error},
};

/// The writing side of a stream or of one of its halves.
#[derive(Debug)]
pub(super) struct Writer {
    end: Arc<StreamEnd>,
    /// The length in bytes of the last write if that write found the peer's window full; otherwise
    /// 0. The length matters because a long write needs more free space than a short one.
    refused: AtomicUsize,
}

impl Writer {
    pub(super) fn new(end: Arc<StreamEnd>) -> Self {
        Self {
            end,
            refused: AtomicUsize::new(0),
        }
    }

    pub(super) fn end(&self) -> &Arc<StreamEnd> {
        &self.end
    }

    pub(super) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let written = cooperate(cx, |cx| self.end.poll_write_bytes(cx, parts));
        self.note(written.is_pending(), total(parts));
        written.map_err(write_error)
    }

    /// Shuts down the write direction: the peer reads all bytes written so far, and then reaches
    /// the end of the stream.
    pub(super) fn shut_down(&self) -> io::Result<()> {
        match self.end.finish() {
            // Tokio's `TcpStream` also returns success if its connection has ended.
            Ok(()) | Err(Error::Disconnected(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn writable(&self) {
        // If the stream counts as writable, this call does not consume the task's budget for
        // cooperative scheduling. `writable` of tokio's types does not consume it either.
        if self.refused.load(Ordering::Relaxed) == 0 {
            return;
        }
        let end = &self.end;
        take_turn(end, |cx, waiter_id| {
            self.poll_room(cx, (waiter_id, Awaited::Room))
        })
        .await;
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let waiter = (Awaited::Room.common(), Awaited::Room);
        cooperate(cx, |cx| self.poll_room(cx, waiter)).map(Ok)
    }

    pub(super) fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let len = total(parts);
        if len == 0 {
            return Ok(0);
        }
        let written = self.end.write_now(parts);
        self.note(matches!(written, Err(TrySendError::Full)), len);
        written.map_err(|error| write_error(error.into()))
    }

    fn note(&self, is_refused: bool, len: usize) {
        let refused = if is_refused { len } else { 0 };
        self.refused.store(refused, Ordering::Relaxed);
    }

    /// Returns `WRITABLE` if `interest` includes it and the last write did not find the peer's
    /// window full.
    pub(super) fn assumed_states(&self, interest: Interest) -> Ready {
        if interest.is_writable() && self.refused.load(Ordering::Relaxed) == 0 {
            Ready::WRITABLE
        } else {
            Ready::EMPTY
        }
    }

    /// Returns the current readiness of this direction, limited to `interest`. If the last write
    /// found the peer's window full, the result includes `WRITABLE` as soon as a write of the same
    /// length would accept bytes or fail. In all other cases,
    /// [`assumed_states`](Self::assumed_states) returns `WRITABLE`.
    pub(super) fn ready_states(&self, interest: Interest) -> Ready {
        let mut states = Ready::EMPTY;
        if interest.is_writable() {
            let refused = self.refused.load(Ordering::Relaxed);
            if refused != 0 && self.end.has_room(refused) {
                states |= Ready::WRITABLE;
            }
            if self.end.is_over() {
                states |= Ready::WRITE_CLOSED;
            }
        }
        states
    }

    /// Waits until a repetition of the last write would accept bytes. If that write did not find
    /// the peer's window full, returns immediately.
    fn poll_room(&self, cx: &mut Context<'_>, waiter: (WaiterId, Awaited)) -> Poll<()> {
        self.end.poll_until(cx, waiter, || {
            let refused = self.refused.load(Ordering::Relaxed);
            if refused != 0 && !self.end.has_room(refused) {
                return None;
            }
            // The stream is considered writable until another write finds the window full.
            let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.refused.compare_exchange(refused, 0, set, get);
            Some(())
        })
    }
}
