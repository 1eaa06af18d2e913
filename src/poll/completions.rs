use std::{ops::Deref, time::Duration};

use super::{
    deadline::Deadline,
    sys::{Alarm, Woken},
};
pub(crate) use crate::transport::Answers;
use crate::{status::OsError, transport::CompletionEvents};

/// What polling a completion queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It was empty.
    Nothing,
    /// It is empty now.
    Some,
    /// There may be more, for which no event will be raised: poll again.
    More,
    /// Another thread is receiving, and acts on everything that has come when it runs next.
    Held,
}

/// A connection's completion queue, as whoever polls it sees it.
pub(crate) trait Completions {
    type Events: Events;

    /// Takes some of what is in the queue and acts on it, polling up to `budget` times while there
    /// is nothing.
    fn poll(&self, budget: u32, answers: Answers) -> Progress;

    /// Requests an event for the next completion.
    fn arm(&self);

    /// Returns the events, and whether they stay readable from now on because the connection is
    /// about to end. There are none before and after the transport.
    fn events(&self) -> Option<(impl Deref<Target = Self::Events>, bool)>;

    /// Whether the events are readable as long as polling may bring something, instead of once for
    /// the next completion after [`arm`](Self::arm). Polling costs a system call then.
    fn stays_readable(&self) -> bool;

    /// Whether a large message is being transferred.
    fn awaits_large(&self) -> bool;

    /// Waits in the call that receives, which saves a call, unless `is_woken` returns true when
    /// nothing else can be taken by another thread any more. Returns false, and has not waited,
    /// where that is not possible: nothing ends this wait but what comes and the connection's end.
    fn receive(
        &self,
        events: &Self::Events,
        deadline: &Deadline,
        is_woken: impl Fn() -> bool,
    ) -> bool;
}

/// What a thread sleeps on: the events that completions raise.
pub(crate) trait Events {
    /// Takes an event that was raised, if there is one.
    fn clear(&self);

    /// Sends the peer what has waited for something else to be sent.
    fn answer(&self);

    /// Sleeps until there is an event, the alarm rings, or no time is `left`.
    fn doze(&self, alarm: &Alarm, left: Option<Duration>) -> Result<Woken, OsError>;
}

impl Events for CompletionEvents {
    fn clear(&self) {
        Self::clear(self);
    }

    fn answer(&self) {
        Self::answer(self);
    }

    fn doze(&self, alarm: &Alarm, left: Option<Duration>) -> Result<Woken, OsError> {
        alarm.doze_beside(self, left)
    }
}
