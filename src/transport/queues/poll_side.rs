use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use super::done::Done;
#[cfg(feature = "rdma")]
use crate::transport::rdma;
use crate::{
    poll::{Alarm, Answers, Events, Woken},
    status::OsError,
    transport::{in_memory, tcp},
};

/// The polling end of a connection's completion queue, for one thread at a time.
#[derive(Debug)]
pub(crate) struct PollSide {
    queue: CompletionQueue,
    /// `None` if the peer is in this process: its thread delivers completions.
    events: Option<Arc<CompletionEvents>>,
    /// Whether an empty queue means that all receives have completed. That is so for shared
    /// receives, which have no marker.
    drains_when_empty: bool,
}

/// Completions, of whichever transport.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one a connection, on the hot path"
)]
pub(crate) enum CompletionQueue {
    #[cfg(feature = "rdma")]
    Rdma(rdma::CompletionQueue),
    Tcp(tcp::CompletionQueue),
    Memory(in_memory::CompletionQueue),
}

/// The source of the event for the next completion after [`PollSide::arm`]. Its file descriptor is
/// readable while there are events.
#[derive(Debug)]
pub(crate) enum CompletionEvents {
    #[cfg(feature = "rdma")]
    Rdma(rdma::CompletionEvents),
    Tcp(tcp::CompletionEvents),
}

impl PollSide {
    pub(crate) fn new(queue: CompletionQueue, events: Option<CompletionEvents>) -> Self {
        Self {
            queue,
            events: events.map(Arc::new),
            drains_when_empty: false,
        }
    }

    /// Takes up to [`BATCH`](super::BATCH) completions, which [`done`](Self::done) then returns.
    /// Returns their number.
    #[inline]
    pub(crate) fn poll(&mut self, answers: Answers) -> Result<usize, OsError> {
        by_transport!(CompletionQueue, &mut self.queue, {
            Rdma(queue) => queue.poll(),
            Tcp(queue) => Ok(queue.poll(answers)),
            Memory(queue) => Ok(queue.poll()),
        })
    }

    /// Whether there may be more than the `count` that were taken last.
    #[inline]
    pub(crate) fn has_more(&self, count: usize) -> bool {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(_) => count == super::BATCH,
            Tcp(queue) => queue.has_more(),
            Memory(queue) => queue.has_more(),
        })
    }

    /// Whether the last poll took nothing because another thread is receiving.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(_) => false,
            Tcp(queue) => queue.is_held(),
            Memory(_) => false,
        })
    }

    /// Returns a completion of the last poll. Their numbers begin at 0.
    #[inline]
    pub(crate) fn done(&self, number: usize) -> Done {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(queue) => queue.done(number),
            Tcp(queue) => queue.done(number),
            Memory(queue) => queue.done(number),
        })
    }

    /// Returns the receive buffer and the length of the frame, if the completion with this number
    /// is that of a frame. `None` if [`done`](Self::done) has to tell.
    #[inline]
    pub(crate) fn frame(&self, number: usize) -> Option<(u32, u32)> {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(queue) => queue.frame(number),
            Tcp(queue) => queue.frame(number),
            Memory(queue) => queue.frame(number),
        })
    }

    /// Requests an event for the next completion.
    #[inline]
    pub(crate) fn arm(&self) -> Result<(), OsError> {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(queue) => queue.arm(),
            // The socket is readable while there are bytes, without a request.
            Tcp(_) => Ok(()),
            // The peer's thread has the queue polled.
            Memory(_) => Ok(()),
        })
    }

    /// Whether the fd stays readable, independently of polls, because the connection is about to
    /// end.
    pub(crate) fn has_ended(&self) -> bool {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(_) => false,
            Tcp(queue) => queue.has_ended(),
            Memory(_) => false,
        })
    }

    /// Returns the number of completions that the queue can hold.
    pub(crate) fn capacity(&self) -> usize {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(queue) => queue.capacity(),
            Tcp(queue) => queue.capacity(),
            Memory(queue) => queue.capacity(),
        })
    }

    /// Returns the events; `None` if no event reports completions.
    pub(crate) fn events(&self) -> Option<&Arc<CompletionEvents>> {
        self.events.as_ref()
    }

    /// Records that all receives have completed once the queue is empty.
    pub(crate) fn drains_when_empty(&mut self) {
        self.drains_when_empty = true;
    }

    /// Returns whether the empty queue means that all receives have completed. It returns true
    /// once.
    pub(crate) fn is_drained(&mut self) -> bool {
        std::mem::take(&mut self.drains_when_empty)
    }
}

impl CompletionEvents {
    /// Returns the limit of hops that a program may change; `None` if the route determines it.
    pub(crate) fn hop_limit(&self) -> Option<tcp::HopLimit<'_>> {
        by_transport!(self, {
            Rdma(_) => None,
            Tcp(events) => Some(tcp::HopLimit::of(events)),
        })
    }

    /// Reserves the arriving bytes for this thread, which is about to wait for them. Returns `None`
    /// if it cannot wait, or bytes may have arrived already.
    pub(crate) fn reserve(&self) -> Option<tcp::Reserved<'_>> {
        by_transport!(self, {
            Rdma(_) => None,
            Tcp(events) => events.reserve(),
        })
    }
}

impl AsFd for CompletionEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        by_transport!(self, events => events.as_fd())
    }
}

impl Events for CompletionEvents {
    /// Takes one event. There may be more, but the caller arms and polls afterwards, and so finds
    /// the completions of all events.
    fn clear(&self) {
        by_transport!(self, {
            Rdma(events) => events.clear(),
            Tcp(_) => {},
        })
    }

    fn answer(&self) {
        by_transport!(self, {
            Rdma(_) => {},
            Tcp(events) => events.answer(),
        })
    }

    fn sleep_until_event(&self, alarm: &Alarm, left: Option<Duration>) -> Result<Woken, OsError> {
        alarm.sleep_until_ready(self, left)
    }
}
