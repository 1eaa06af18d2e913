use std::mem;

use super::{completion::Completion, outbox::Outbox};
use crate::proto::Note;

/// The work that [`Link::run_deferred`](super::link::Link::run_deferred) does after the locks are
/// released.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// The engine's thread has to drive the connection.
    pub(super) drive: bool,
    /// Waiting threads and tasks are woken, and check their conditions again.
    pub(super) wake: bool,
    /// A completion was put into the channel.
    pub(super) arrived: bool,
    /// The peer has finished.
    pub(super) finished: bool,
    /// A send that was refused may be tried again.
    pub(super) room: bool,
    /// The actions, in the order in which they were deferred.
    pub(super) later: Vec<DeferredAction>,
}

/// An action that must not be performed under a lock of the connection.
#[derive(Debug)]
pub(super) enum DeferredAction {
    /// Drop the sending end of the channel. This may drop its unread messages, and the release of
    /// each message takes the locks.
    Close(Outbox),
    /// Drop a completion that has no receiver. The release of its message takes the locks.
    Drop(Completion),
    /// Have the runtime of the tasks watch the next connection of the session. The runtime has
    /// locks of its own.
    #[cfg(feature = "tokio")]
    EnterRuntime,
    /// Write a line to the log.
    Log(Note),
}

impl Deferred {
    /// Takes the work, or returns `None` if there is none.
    pub(super) fn take(&mut self) -> Option<Self> {
        (!self.is_nothing()).then(|| mem::take(self))
    }

    /// Whether there is no work.
    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        // `arrived`, `finished` and `room` come with a wake.
        !self.drive && !self.wake && self.later.is_empty()
    }

    /// Whether any deferred work is left for
    /// [`Link::run_deferred`](super::link::Link::run_deferred).
    pub(super) fn is_left(&self) -> bool {
        self.wake || !self.later.is_empty()
    }

    /// Adds later work to earlier work.
    #[inline]
    pub(super) fn join(earlier: &mut Option<Self>, later: Option<Self>) {
        match (earlier, later) {
            (_, None) => {}
            (Some(earlier), Some(later)) => earlier.add(later),
            (earlier, later) => *earlier = later,
        }
    }

    /// Adds later work.
    pub(super) fn add(&mut self, mut other: Self) {
        self.drive |= other.drive;
        self.wake |= other.wake;
        self.arrived |= other.arrived;
        self.finished |= other.finished;
        self.room |= other.room;
        self.later.append(&mut other.later);
    }

    /// Defers a line for the log, if the program logs lines of its level.
    pub(super) fn log(&mut self, note: Option<Note>) {
        self.later.extend(note.map(DeferredAction::Log));
    }
}
