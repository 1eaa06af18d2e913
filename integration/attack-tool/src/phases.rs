use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The present part of a run, for all threads of this process.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// The number of operations of honest clients in flight.
    in_flight: usize,
    failures: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Honest clients wait.
    #[default]
    Pause,
    /// Honest clients work.
    Quiet(usize),
    /// Attackers work as well.
    Attack(usize),
    /// The run has ended.
    Over,
}

impl Phases {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, phase: Phase) {
        self.lock().phase = phase;
        self.changed.notify_all();
    }

    /// Waits until this side works, and begins an operation. Returns the phase in which it begins,
    /// or `None` at the end of the run.
    pub(crate) fn enter(&self) -> Option<Phase> {
        let state = self.lock();
        let pauses = |state: &mut State| state.phase == Phase::Pause;
        let state = self.changed.wait_while(state, pauses);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.phase == Phase::Over {
            return None;
        }
        state.in_flight += 1;
        Some(state.phase)
    }

    /// Ends an operation.
    pub(crate) fn leave(&self) {
        self.lock().in_flight -= 1;
        self.changed.notify_all();
    }

    /// Waits until no operation is in flight, for `limit` at the most, and returns whether that is
    /// so.
    pub(crate) fn wait_idle(&self, limit: Duration) -> bool {
        let is_busy = |state: &mut State| state.in_flight > 0;
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), limit, is_busy)
            .unwrap_or_else(PoisonError::into_inner);
        !waited.1.timed_out()
    }

    /// Waits for `time`, or until a failure is known.
    pub(crate) fn wait(&self, time: Duration) {
        let is_well = |state: &mut State| state.failures.is_empty();
        let _ = self.changed.wait_timeout_while(self.lock(), time, is_well);
    }

    pub(crate) fn fail(&self, failure: String) {
        eprintln!("attack: {failure}");
        self.lock().failures.push(failure);
        self.changed.notify_all();
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        self.lock().failures.clone()
    }
}
