//! Serializes the reads of a stream's handles.

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

/// The reading side of a stream, which one handle at a time may use, by its [`Turn`].
///
/// A handle keeps its turn while it waits for bytes, so that handles get bytes in the order of
/// their turns. The wait of another handle for its turn has the same time limit as a wait for
/// bytes.
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
    /// The number of threads that wait for their turn.
    threads: usize,
    /// Wakes the task that waits for its turn.
    task: Option<Waker>,
}

/// Who reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TurnOwner {
    /// No handle.
    #[default]
    Free,
    /// A handle that found bytes, and takes them without waiting.
    Takes,
    /// A handle that found no bytes, and may wait for some.
    Waits,
}

/// A turn to read, which ends when this is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    reading: Reading,
}

impl Turns {
    /// Returns the turn, if no other handle has it.
    pub(crate) fn take(&self) -> Option<Turn<'_>> {
        self.begin(&mut lock(&self.state))
    }

    /// Waits for the turn until the deadline.
    pub(super) fn wait(&self, deadline: &Deadline) -> Option<Turn<'_>> {
        self.wait_while(deadline, |_| true)
    }

    /// Waits for the turn while another handle takes bytes; `None` if one waits for some.
    pub(super) fn wait_for_bytes(&self) -> Option<Turn<'_>> {
        self.wait_while(&Deadline::never(), |whose| whose == TurnOwner::Takes)
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
            state = match left {
                Some(left) => unpoisoned(self.ended.wait_timeout(state, left)).0,
                None => unpoisoned(self.ended.wait(state)),
            };
            state.threads -= 1;
        }
    }

    /// Returns the turn, or has the task woken when another handle's turn ends.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Turn<'_>> {
        if let Some(turn) = self.take() {
            return Poll::Ready(turn);
        }
        // A waker is cloned, and dropped, without the lock.
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

    /// Returns the reading side to the only handle.
    pub(crate) fn get_mut(&mut self) -> &mut Reading {
        &mut unpoisoned(self.state.get_mut()).reading
    }

    /// Returns whether a turn may find bytes. The result may be wrong while another handle has its
    /// turn.
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
            TurnOwner::Takes
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
                // All waiting threads are woken: the next turn may find no bytes, and then the
                // threads that wait only while bytes are taken return.
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
