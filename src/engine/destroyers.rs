//! Destroys the objects of ended connections on threads of their own.
//!
//! The kernel may wait for the network when it destroys a queue pair or a connection manager's id.
//! After a fault of a driver, it may even wait forever. The engine's thread must not wait
//! for such a call, so a destroyer thread makes it. If all destroyer threads are busy, the next
//! destruction starts another one, up to [`MAX_THREADS`]. A thread that finds no work for
//! [`IDLE_LIMIT`] ends.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use crate::os::{foreign, lock};

/// The maximum number of destroyer threads of an engine. If all of them are blocked, further
/// objects stay allocated.
const MAX_THREADS: usize = 8;

/// The time after which a destroyer thread without work ends.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

/// The destroyer threads of one engine, and their work. Clones refer to the same threads.
#[derive(Clone, Default)]
pub(super) struct Destroyers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// Notified when work was added, when the last destruction has ended, when the engine has
    /// ended, and when a thread ends.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Destruction>,
    /// The number of threads.
    threads: usize,
    /// The number of threads that wait for work.
    idle: usize,
    /// The number of destructions that have not ended.
    pending: usize,
    /// Whether the engine has ended. A thread without work then ends at once.
    has_engine_ended: bool,
}

type Destruction = Box<dyn FnOnce() + Send>;

impl Destroyers {
    /// Runs `destroy` on a destroyer thread. If there is no such thread and none can be started,
    /// runs it here.
    pub(super) fn run(&self, destroy: impl FnOnce() + Send + 'static) {
        let inner = &self.0;
        let mut state = lock(&inner.state);
        state.queue.push_back(Box::new(destroy));
        state.pending += 1;
        if state.idle >= state.queue.len() {
            inner.changed.notify_all();
        } else if state.threads < MAX_THREADS {
            let served = Arc::clone(inner);
            let thread = thread::Builder::new().name("rdmsg-destroy".into());
            if thread.spawn(move || served.serve()).is_ok() {
                state.threads += 1;
            } else if state.threads == 0 {
                let destroy = state.queue.pop_back();
                drop(state);
                inner.destroy(destroy);
            }
        }
    }

    /// Waits until all destructions have ended, for at most the time `limit`.
    pub(super) fn wait(&self, limit: Duration) {
        let is_pending = |state: &mut State| state.pending > 0;
        let state = lock(&self.0.state);
        drop(state.wait_while(&self.0.state, &self.0.changed, Some(limit), is_pending));
    }

    /// Records that the engine has ended, so that threads without work end.
    pub(super) fn end(&self) {
        lock(&self.0.state).has_engine_ended = true;
        self.0.changed.notify_all();
    }

    /// Waits until all threads have ended, for at most the time `limit`. The engine has ended.
    pub(super) fn join(&self, limit: Duration) {
        let is_running = |state: &mut State| state.threads > 0;
        let state = lock(&self.0.state);
        let pending = state
            .wait_while(&self.0.state, &self.0.changed, Some(limit), is_running)
            .pending;
        if pending > 0 {
            warn!(
                Engine,
                "engine: the kernel has not destroyed the objects of {pending} ended connections \
                 within {limit:?}; their memory stays pinned"
            );
        }
    }
}

impl Inner {
    /// Runs a destroyer thread.
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            while let Some(destroy) = state.queue.pop_front() {
                drop(state);
                self.destroy(Some(destroy));
                state = lock(&self.state);
            }
            state.idle += 1;
            let is_idle = |state: &mut State| state.queue.is_empty() && !state.has_engine_ended;
            state = state.wait_while(&self.state, &self.changed, Some(IDLE_LIMIT), is_idle);
            state.idle -= 1;
            if state.queue.is_empty() {
                state.threads -= 1;
                self.changed.notify_all();
                return;
            }
        }
    }

    fn destroy(&self, destruction: Option<Destruction>) {
        // Ignore a panic, whose message is printed: the thread must serve other destructions.
        let _ = destruction.map(foreign::call);
        let mut state = lock(&self.state);
        state.pending -= 1;
        if state.pending == 0 {
            self.changed.notify_all();
        }
    }
}

impl fmt::Debug for Destroyers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destroyers").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A time limit that is never reached.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn blocked_destructions_delay_no_others() {
        let destroyers = Destroyers::default();
        let (sender, ended) = channel();
        let mut leaves = Vec::new();
        for _ in 1..MAX_THREADS {
            let (leave, left) = channel::<()>();
            leaves.push(leave);
            destroyers.run(move || assert!(left.recv().is_err()));
        }
        for _ in 0..1000 {
            let sender = sender.clone();
            destroyers.run(move || sender.send(()).unwrap());
        }
        for _ in 0..1000 {
            ended.recv_timeout(LONG).unwrap();
        }
        assert!(lock(&destroyers.0.state).threads <= MAX_THREADS);
        leaves.clear();
        destroyers.end();
        destroyers.join(LONG);
        let state = lock(&destroyers.0.state);
        assert_eq!((state.pending, state.threads), (0, 0));
    }

    #[test]
    fn destruction_that_panics_is_counted() {
        let destroyers = Destroyers::default();
        destroyers.run(|| panic!("a destruction that fails"));
        destroyers.wait(LONG);
        assert_eq!(lock(&destroyers.0.state).pending, 0);
    }
}
