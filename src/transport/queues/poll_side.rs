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

/// The handle with which one thread at a time polls a connection's completion queue.
#[derive(Debug)]
pub(crate) struct PollSide {
    queue: CompletionQueue,
    /// The source of events. `None` over the in-memory transport, which reports completions by a
    /// notice to the engine.
    events: Option<Arc<CompletionEvents>>,
    /// Whether an empty queue means that all receives have completed. Set after the drain marker of
    /// the send queue has completed, if the receive queue has no drain marker.
    drains_when_empty: bool,
}

/// The completion queue of one of the transports.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "each connection has one, on the hot path"
)]
pub(crate) enum CompletionQueue {
    #[cfg(feature = "rdma")]
    Rdma(rdma::CompletionQueue),
    Tcp(tcp::CompletionQueue),
    Memory(in_memory::CompletionQueue),
}

/// The source of the events of a completion queue. After [`PollSide::arm`] the next completion
/// raises an event. The file descriptor is readable while events are pending.
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

    /// Removes up to [`BATCH`](super::BATCH) completions from the queue, and returns their number.
    /// [`done`](Self::done) then returns these completions. Over TCP, if there are completions,
    /// acknowledgements wait until the next message is sent or [`answer`](Self::answer) is called.
    /// With [`Answers::MayWait`], the first poll after a wait returns only the completions of the
    /// wait.
    #[inline]
    pub(crate) fn poll(&mut self, answers: Answers) -> Result<usize, OsError> {
        by_transport!(CompletionQueue, &mut self.queue, {
            Rdma(queue) => queue.poll(),
            Tcp(queue) => Ok(queue.poll(answers)),
            Memory(queue) => Ok(queue.poll()),
        })
    }

    /// Sends the acknowledgements that [`poll`](Self::poll) has delayed.
    #[inline]
    pub(crate) fn answer(&self) {
        if let CompletionQueue::Tcp(queue) = &self.queue {
            queue.answer();
        }
    }

    /// Returns whether the queue may contain more completions after a poll that returned `count`
    /// completions.
    #[inline]
    pub(crate) fn has_more(&self, count: usize) -> bool {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(_) => count == super::BATCH,
            Tcp(queue) => queue.has_more(),
            Memory(queue) => queue.has_more(),
        })
    }

    /// Returns true if the most recent poll found no completion because another thread was
    /// receiving from the socket.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(_) => false,
            Tcp(queue) => queue.is_held(),
            Memory(_) => false,
        })
    }

    /// Returns one of the completions that the last poll removed from the queue. `number` is the
    /// index of the completion, from 0.
    #[inline]
    pub(crate) fn done(&self, number: usize) -> Done {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(queue) => queue.done(number),
            Tcp(queue) => queue.done(number),
            Memory(queue) => queue.done(number),
        })
    }

    /// If the completion with the index `number` reports a received frame, returns the frame's
    /// receive buffer and length. Otherwise returns `None`, and the caller calls
    /// [`done`](Self::done).
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
            // No request is needed, because the socket is readable while it contains bytes.
            Tcp(_) => Ok(()),
            // The thread that adds a completion sends the engine a notice to poll the queue.
            Memory(_) => Ok(()),
        })
    }

    /// Returns true if the TCP stream has ended. The file descriptor then stays readable after each
    /// poll. Over the other transports, always returns false.
    pub(crate) fn has_ended(&self) -> bool {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(_) => false,
            Tcp(queue) => queue.has_ended(),
            Memory(_) => false,
        })
    }

    /// Returns the maximum number of completions in the queue.
    pub(crate) fn capacity(&self) -> usize {
        by_transport!(CompletionQueue, &self.queue, {
            Rdma(queue) => queue.capacity(),
            Tcp(queue) => queue.capacity(),
            Memory(queue) => queue.capacity(),
        })
    }

    /// Returns the source of events; `None` over the in-memory transport.
    pub(crate) fn events(&self) -> Option<&Arc<CompletionEvents>> {
        self.events.as_ref()
    }

    /// Records that from now on an empty queue means that all receives have completed.
    pub(crate) fn drains_when_empty(&mut self) {
        self.drains_when_empty = true;
    }

    /// Called when the queue is empty. Returns true if the empty queue means that all receives have
    /// completed. Returns true only once for each call of
    /// [`drains_when_empty`](Self::drains_when_empty).
    pub(crate) fn is_drained(&mut self) -> bool {
        std::mem::take(&mut self.drains_when_empty)
    }
}

impl CompletionEvents {
    /// Returns access to the hop limit of the connection's packets. Returns `None` over RDMA, where
    /// the program cannot change the hop limit, because the route determines it.
    pub(crate) fn hop_limit(&self) -> Option<tcp::HopLimit<'_>> {
        by_transport!(self, {
            Rdma(_) => None,
            Tcp(events) => Some(tcp::HopLimit::of(events)),
        })
    }

    /// Over TCP, locks the receiving side of the socket for the calling thread, which is about to
    /// wait for bytes. Returns `None` if the thread must not wait, for example because bytes may
    /// have arrived already. Over RDMA, always returns `None`.
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
    /// Over RDMA, consumes one event, even if more events are pending. The caller then arms and
    /// polls the queue, and so finds the completions of all events. Over TCP, does nothing.
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
