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
    /// There may be more, for which no event will be raised: poll again.
    More,
    /// Another thread is polling or receiving. The scheduler may have preempted it, so the caller
    /// does not wait for it but polls again later.
    Busy,
}

/// A connection's completion queue, for the thread that polls it.
pub trait Completions {
    /// The events that completions raise.
    type Events: Events;

    /// Takes completions from the queue and handles them. It polls up to `budget` times while the
    /// queue is empty.
    fn poll(&self, budget: u32, answers: Answers) -> Progress;

    /// Requests an event for the next completion, and polls once: that takes the completions from
    /// before the request, which raise no event.
    fn arm_and_poll(&self, answers: Answers) -> Progress;

    /// Returns the events, and whether they stay readable because the connection is about to end.
    /// Returns `None` without a transport.
    fn events(&self) -> Option<(impl Deref<Target = Self::Events>, bool)>;

    /// Whether the events are level-triggered: readable while the queue may have completions,
    /// instead of once after [`arm_and_poll`](Self::arm_and_poll). A poll costs a system call then.
    fn stays_readable(&self) -> bool;

    /// Returns the same queue without a direct handoff: all its messages go to the channel.
    fn without_handoff(&self) -> Self
    where
        Self: Sized;

    /// Whether a large message is being transferred.
    fn awaits_large(&self) -> bool;

    /// Waits in the system call that receives, which saves a call. The wait ends when bytes arrive,
    /// when the connection ends, or after a few seconds. It ends early if `is_woken` returns true.
    /// Returns false, without a wait, if the transport or the deadline does not allow it.
    fn receive(
        &self,
        events: &Self::Events,
        deadline: &Deadline,
        is_woken: impl Fn() -> bool,
    ) -> bool;
}

/// Whether a poll acknowledges at once, on a transport whose acknowledgements this process sends
/// instead of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// The poll sends acknowledgements at once.
    AtOnce,
    /// Acknowledgements that the peer does not need now may wait for a message, or until a poll
    /// finds nothing, or [`Events::answer`].
    MayWait,
}

/// The events that completions raise, on which a thread sleeps.
pub trait Events: Send + Sync {
    /// Takes a raised event, if there is one.
    fn clear(&self);

    /// Sends delayed acknowledgements.
    fn answer(&self);

    /// Sleeps until there is an event, the alarm rings, or no time is `left`.
    fn sleep_until_event(&self, alarm: &Alarm, left: Option<Duration>) -> Result<Woken, OsError>;
}
