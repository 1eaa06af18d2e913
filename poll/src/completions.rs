use std::{ops::Deref, time::Duration};

use rdma_status::OsError;

use super::{
    deadline::Deadline,
    sys::{Alarm, Woken},
};

/// The result of polling a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The queue was empty.
    Nothing,
    /// The poll took completions, and the queue is now empty.
    Some,
    /// The queue may contain more completions. No event is raised for them, so the caller polls
    /// again.
    More,
    /// Another thread is executing a poll or a receive call, and the scheduler may have preempted
    /// that thread. The caller does not wait for it and polls again later.
    Busy,
}

/// A connection's completion queue, for the thread that polls it.
pub trait Completions {
    /// The events that completions raise.
    type Events: Events;

    /// Takes completions from the queue and handles them. If the queue is empty, the function polls
    /// it again, up to `budget` times in total.
    fn poll(&self, budget: u32, answers: Answers) -> Progress;

    /// Requests an event for the next completion, then polls once. Completions from before the
    /// request raise no event, so that poll takes them.
    fn arm_and_poll(&self, answers: Answers) -> Progress;

    /// Returns the queue's events. The flag is true if the events stay readable because the
    /// connection is about to end. Returns `None` if the connection has no transport.
    fn events(&self) -> Option<(impl Deref<Target = Self::Events>, bool)>;

    /// Returns whether the events are level-triggered, as those of a TCP socket: readable while the
    /// queue may contain completions. Each poll of such a queue costs a system call. Otherwise the
    /// events are readable once after each [`arm_and_poll`](Self::arm_and_poll).
    fn stays_readable(&self) -> bool;

    /// Returns whether the calling thread has polled the queue before it began to wait.
    fn was_polled(&self) -> bool;

    /// Returns a handle of the same queue for a thread that takes no message itself. A poll through
    /// this handle puts all messages into the connection's channel.
    fn without_handoff(&self) -> Self
    where
        Self: Sized;

    /// Returns whether a large message is being transferred.
    fn awaits_large(&self) -> bool;

    /// Sleeps in the receive system call, which saves the separate call that waits for readability.
    /// The sleep ends when bytes arrive, when the connection ends, when `is_woken` returns true,
    /// and at the latest after a few seconds. Returns false without a sleep if the transport or the
    /// deadline does not allow such a sleep.
    fn receive(
        &self,
        events: &Self::Events,
        deadline: &Deadline,
        is_woken: impl Fn() -> bool,
    ) -> bool;
}

/// When a poll sends acknowledgements. It matters for transports that acknowledge in software, as
/// TCP does, instead of in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// The poll sends all acknowledgements before it returns.
    AtOnce,
    /// The poll sends the acknowledgements that the peer needs now. The others wait for the next
    /// message, for a poll that finds nothing, or for [`Events::answer`].
    MayWait,
}

/// The events that completions raise, on which a thread sleeps.
pub trait Events: Send + Sync {
    /// Takes a raised event, if there is one, so that the events are no longer readable.
    fn clear(&self);

    /// Sends the acknowledgements that [`Answers::MayWait`] has delayed.
    fn answer(&self);

    /// Sleeps until an event is raised, another thread rings `alarm`, or the time `left` has
    /// passed. Without `left` the sleep has no time limit.
    fn sleep_until_event(&self, alarm: &Alarm, left: Option<Duration>) -> Result<Woken, OsError>;
}
