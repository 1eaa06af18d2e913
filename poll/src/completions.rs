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
    /// The poll took at least one completion, and the queue is now empty.
    Some,
    /// The queue may contain more completions. They raise no event, so the caller polls again.
    More,
    /// Another thread is executing a poll or a receive call, and the scheduler may have preempted
    /// that thread. The caller does not wait for that thread and polls again later.
    Busy,
}

/// A connection's completion queue, as seen by the thread that polls it.
pub trait Completions {
    /// The event source that reports new completions.
    type Events: Events;

    /// Takes completions from the queue and handles them. While the queue is empty, polls it again,
    /// up to `budget` times in total.
    fn poll(&self, budget: u32, answers: Answers) -> Progress;

    /// Requests an event for the next completion, then polls once. The poll takes completions that
    /// arrived before the request, because these raise no event.
    fn arm_and_poll(&self, answers: Answers) -> Progress;

    /// Returns the queue's events, or `None` if the connection has no transport. The flag is true
    /// if the events stay readable because the connection is about to end.
    fn events(&self) -> Option<(impl Deref<Target = Self::Events>, bool)>;

    /// Returns whether the events are level-triggered, as those of a TCP socket are: readable while
    /// the queue may contain completions. Each poll of such a queue costs a system call. Other
    /// events become readable once after each [`arm_and_poll`](Self::arm_and_poll).
    fn stays_readable(&self) -> bool;

    /// Returns whether the calling thread polled the queue before it began to wait.
    fn was_polled(&self) -> bool;

    /// Returns a handle of the same queue for a thread that receives no message itself. A poll
    /// through this handle puts all messages into the connection's channel.
    fn delivering_to_channel(&self) -> Self
    where
        Self: Sized;

    /// Returns whether a large message is being transferred.
    fn awaits_large(&self) -> bool;

    /// Sleeps in the receive system call, which makes a separate wait for readability unnecessary.
    /// The sleep ends when bytes arrive, when the connection ends, when `is_woken` returns true,
    /// and at the latest after a few seconds. Returns false without sleeping if the transport or
    /// the deadline does not allow such a sleep.
    fn receive(
        &self,
        events: &Self::Events,
        deadline: &Deadline,
        is_woken: impl Fn() -> bool,
    ) -> bool;
}

/// When a poll sends acknowledgements. This choice matters for transports that acknowledge in
/// software, as TCP does, instead of in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// The poll sends all acknowledgements before it returns.
    AtOnce,
    /// The poll sends only the acknowledgements that the peer needs now. The other acknowledgements
    /// are sent with the next message, by a poll that finds no completion, or by
    /// [`Events::answer`].
    MayWait,
}

/// The event source that reports completions, on which a thread sleeps.
pub trait Events: Send + Sync {
    /// Consumes a raised event, if there is one, so that the source is no longer readable.
    fn clear(&self);

    /// Sends the acknowledgements that [`Answers::MayWait`] has delayed.
    fn answer(&self);

    /// Sleeps until an event is raised, another thread rings `alarm`, or the time `left` has
    /// passed. If `left` is `None`, the sleep has no time limit.
    fn sleep_until_event(&self, alarm: &Alarm, left: Option<Duration>) -> Result<Woken, OsError>;
}
