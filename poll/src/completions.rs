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
    /// The poll handled at least one completion, and the queue is now empty.
    Some,
    /// The queue may contain more completions. The caller must poll again, because these
    /// completions raise no event.
    More,
    /// Another thread is executing a poll or a receive call, and the scheduler may have preempted
    /// that thread. The caller polls again later, without waiting for that thread.
    Busy,
}

/// A handle through which a thread polls a connection's completion queue.
pub trait Completions {
    /// The event source that reports new completions.
    type Events: Events;

    /// Polls the queue at most `budget` times, until a poll finds completions. Removes these
    /// completions from the queue and handles them.
    fn poll(&self, budget: u32, answers: Answers) -> Progress;

    /// Requests an event for the next completion, then polls once. The poll handles the completions
    /// that arrived before the request, because they raise no event.
    fn arm_and_poll(&self, answers: Answers) -> Progress;

    /// Returns the source of completion events and a flag, or `None` if the connection has no
    /// transport. The flag is true if the source stays readable because the connection is about to
    /// end.
    fn events(&self) -> Option<(impl Deref<Target = Self::Events>, bool)>;

    /// Returns true if the events are level-triggered, as on a TCP socket. In this case, the source
    /// is readable while the queue may contain completions, and each poll of the queue costs a
    /// system call. If the result is false, the source becomes readable at most once after each
    /// [`arm_and_poll`](Self::arm_and_poll).
    fn is_level_triggered(&self) -> bool;

    /// Returns true if the calling thread polled the queue just before it began to wait.
    fn was_polled(&self) -> bool;

    /// Returns a handle to the same queue, for a thread that does not receive messages. A poll
    /// through this handle puts all messages into the connection's channel.
    fn delivering_to_channel(&self) -> Self
    where
        Self: Sized;

    /// Returns true if a large message is being transferred.
    fn awaits_large(&self) -> bool;

    /// Sleeps in the system call that receives bytes, so that no separate wait for readability is
    /// necessary. The sleep ends when bytes arrive, when the connection ends, when `is_woken`
    /// returns true, and at the latest after a few seconds. Returns false without sleeping if the
    /// transport or the deadline does not permit such a sleep. Returns true otherwise.
    fn receive(
        &self,
        events: &Self::Events,
        deadline: &Deadline,
        is_woken: impl Fn() -> bool,
    ) -> bool;
}

/// Selects when a poll sends acknowledgements. The selection has an effect only on transports such
/// as TCP, on which this library, and not the device, sends the acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// The poll sends all acknowledgements before it returns.
    AtOnce,
    /// The poll sends only the acknowledgements that the peer needs now. The other acknowledgements
    /// wait until the next message is sent, until a poll finds no completion, or until
    /// [`Events::answer`] is called.
    MayWait,
}

/// A source of completion events. A thread sleeps on this source.
pub trait Events: Send + Sync {
    /// Consumes a raised event, if there is one, so that the source is no longer readable.
    fn clear(&self);

    /// Sends the acknowledgements that [`Answers::MayWait`] has delayed.
    fn answer(&self);

    /// Sleeps until an event is raised, another thread rings `alarm`, or the time `left` has
    /// elapsed. If `left` is `None`, the sleep has no time limit. An implementation may end a sleep
    /// with [`Woken::Time`] after several seconds even if the time `left` has not elapsed, so the
    /// caller must check its deadline.
    fn sleep_until_event(&self, alarm: &Alarm, left: Option<Duration>) -> Result<Woken, OsError>;
}
