use std::mem;

use super::{completion::Completion, destination::Destination};
use crate::proto::Note;

/// Work that a thread defers while it holds locks. After the thread has released the locks, it
/// passes the work to [`Link::run_deferred`](super::link::Link::run_deferred).
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Whether the engine's thread has to drive the connection.
    pub(super) drive: bool,
    /// Whether waiting threads and tasks have to be woken, to check their conditions again.
    pub(super) wake: bool,
    /// Whether a completion was put into the queue.
    pub(super) arrived: bool,
    /// Whether the peer has finished sending, and [`Completion::Finished`] must be put into the
    /// queue.
    pub(super) finished: bool,
    /// Whether a refused send can be tried again.
    pub(super) room: bool,
    /// The deferred actions, oldest first.
    pub(super) later: Vec<DeferredAction>,
}

/// An action that must not be performed while a lock of the connection is held.
#[derive(Debug)]
pub(super) enum DeferredAction {
    /// Drop the connection's side of the queue. This action can drop unread messages, and the
    /// release of each message takes the connection's locks.
    Close(Box<Destination>),
    /// Drop a completion that has no receiver. The release of its message takes the connection's
    /// locks.
    Drop(Completion),
    /// Register the session's next connection with the tokio runtime of the session's tasks. The
    /// runtime takes its own locks.
    #[cfg(feature = "tokio")]
    EnterRuntime,
    /// Write a log line.
    Log(Note),
}

impl Deferred {
    /// Takes the deferred work. Returns `None` if there is no work.
    pub(super) fn take(&mut self) -> Option<Self> {
        (!self.is_nothing()).then(|| mem::take(self))
    }

    /// Returns whether there is no work.
    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        // `arrived`, `finished` and `room` are set only together with `wake`.
        !(self.drive | self.wake) && self.later.is_empty()
    }

    /// Returns whether there is work for [`Link::run_deferred`](super::link::Link::run_deferred).
    /// Ignores `drive`, which that function does not handle.
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

    /// Defers a log line. `note` is `None` if the program does not log lines of this level.
    pub(super) fn log(&mut self, note: Option<Note>) {
        self.later.extend(note.map(DeferredAction::Log));
    }
}
