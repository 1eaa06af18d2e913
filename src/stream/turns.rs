//! Lets only one handle of a stream read at a time.

use std::{
    fmt, mem,
    ops::{Deref, DerefMut},
    sync::{Condvar, Mutex},
    task::{Context, Poll, Waker},
};

use super::reading::Reading;
use crate::{
    link::Deadline,
    os::{lock, unpoisoned},
};

/// The reading side of a stream. Only one handle at a time can use it, through a [`Turn`].
///
/// A handle keeps its turn while it waits for bytes, so handles receive bytes in the order of their
/// turns. Waiting for a turn has the same time limit as waiting for bytes.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    /// Notified when a turn ends.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    turn: TurnOwner,
    reading: Reading,
    /// The number of threads that wait for a turn.
    threads: usize,
    /// The waker of the task that waits for a turn.
    task: Option<Waker>,
}

/// Whether a handle has the turn, and what this handle does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TurnOwner {
    /// No handle has the turn.
    #[default]
    Free,
    /// The handle has found bytes, and consumes them without waiting.
    Consumes,
    /// The handle has found no bytes, so it may wait until bytes arrive.
    Waits,
}

/// The exclusive right of a handle to read. Dropping it ends the turn.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    reading: Reading,
}

impl Turns {
    /// Returns the turn, or `None` if another handle has it.
    pub(crate) fn take(&self) -> Option<Turn<'_>> {
        self.begin(&mut lock(&self.state))
    }

    /// Waits for the turn. Returns `None` if the deadline expires.
    pub(super) fn wait(&self, deadline: &Deadline) -> Option<Turn<'_>> {
        self.wait_while(deadline, |_| true)
    }

    /// Waits for the turn while another handle consumes bytes. Returns `None` if the handle that
    /// has the turn found no bytes and may wait for them.
    pub(super) fn wait_for_bytes(&self) -> Option<Turn<'_>> {
        self.wait_while(&Deadline::never(), |owner| owner == TurnOwner::Consumes)
    }

    fn wait_while(
        &self,
        deadline: &Deadline,
        is_worth_it: impl Fn(TurnOwner) -> bool,
    ) -> Option<Turn<'_>> {
        let mut state = lock(&self.state);
        loop {
            let turn = self.begin(&mut state);
            if turn.is_some() || !is_worth_it(state.turn) {
                return turn;
            }
            let left = deadline.left();
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            state.threads += 1;
            state = state.wait(&self.state, &self.ended, left);
            state.threads -= 1;
        }
    }

    /// Returns the turn. If another handle has the turn, returns `Pending`, and wakes the task when
    /// that turn ends.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Turn<'_>> {
        if let Some(turn) = self.take() {
            return Poll::Ready(turn);
        }
        // Cloning or dropping a waker runs code of the runtime. Therefore this function does both
        // while it does not hold the lock.
        let waker = cx.waker().clone();
        let mut state = lock(&self.state);
        if let Some(turn) = self.begin(&mut state) {
            return Poll::Ready(turn);
        }
        let before = state.task.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Returns the reading side. The exclusive reference shows that no other handle reads, so the
    /// caller needs no turn.
    pub(crate) fn get_mut(&mut self) -> &mut Reading {
        &mut unpoisoned(self.state.get_mut()).reading
    }

    /// Returns true if a read might find bytes. Always returns true while a handle has the turn,
    /// because this handle has taken the unread bytes out of `State`.
    #[cfg(feature = "tokio")]
    pub(crate) fn may_have_bytes(&self) -> bool {
        let state = lock(&self.state);
        state.turn != TurnOwner::Free || !state.reading.bytes().is_empty()
    }

    fn begin(&self, state: &mut State) -> Option<Turn<'_>> {
        if state.turn != TurnOwner::Free {
            return None;
        }
        state.turn = if state.reading.bytes().is_empty() {
            TurnOwner::Waits
        } else {
            TurnOwner::Consumes
        };
        Some(Turn {
            turns: self,
            reading: mem::take(&mut state.reading),
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let task = {
            let mut state = lock(&self.turns.state);
            state.reading = mem::take(&mut self.reading);
            state.turn = TurnOwner::Free;
            if state.threads > 0 {
                // If the next owner of the turn finds no bytes, all threads in `wait_for_bytes`
                // must return. Therefore this call wakes all waiting threads, although only one of
                // them gets the turn.
                self.turns.ended.notify_all();
            }
            state.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Deref for Turn<'_> {
    type Target = Reading;

    fn deref(&self) -> &Reading {
        &self.reading
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Reading {
        &mut self.reading
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").finish_non_exhaustive()
    }
}
