//! Keeps an engine running while foreign code blocks its thread.
//!
//! The engine's thread owns the reactor, and collects calls of foreign code: wakers and log lines.
//! Between two steps of the reactor, this thread puts the reactor into [`Custody`], runs the
//! foreign code, and takes the reactor back. If the code returns quickly, these actions cost two
//! short critical sections and no thread switch. A second thread, the relief thread, checks the
//! custody every [`FOREIGN_CALL_LIMIT`]. If two consecutive checks find the same foreign code
//! running, the relief thread takes the reactor and becomes the engine's thread. The replaced
//! thread ends when the foreign code returns:
//!
//! ```text
//!            put                     take back
//!   serves ──────> runs foreign code ─────────> serves
//!                        │ the relief thread took the reactor
//!                        └────────────────────> ends
//! ```
//!
//! A waker or a logger that blocks therefore delays the engine once, for at most two times
//! [`FOREIGN_CALL_LIMIT`]. If the replaced thread was merely descheduled, the replacement does no
//! harm.
//!
//! Only one thread at a time runs the foreign code of a connection
//! ([`PendingWork`](foreign::PendingWork)), and only one thread at a time writes log lines. If a
//! waker never returns, it blocks one thread, and the connection's other wakers wait. Other
//! connections are not affected.
//!
//! The relief thread starts at the first call of foreign code. It never starts in a program that
//! uses only blocking calls and does not log.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle, ThreadId},
    time::Duration,
};

use crate::os::{foreign, lock, unpoisoned};

/// The interval between two checks of the relief thread. Foreign code may run for one to two
/// intervals before the relief thread takes the reactor. An ordinary waker returns much earlier.
/// Even a delay of two intervals is too short to affect a peer.
const FOREIGN_CALL_LIMIT: Duration = Duration::from_millis(10);

/// If the relief thread finds no new foreign code in more than this number of consecutive checks,
/// it sleeps until the engine's thread runs foreign code again.
const IDLE_CHECKS: u32 = 100;

/// The operations of a reactor that [`Custody`] calls.
pub(super) trait Work: Send {
    /// Returns whether the reactor is still running.
    fn is_running(&self) -> bool;

    /// Runs one step. Consecutive steps may run on different threads.
    fn step(&mut self);
}

/// Holds the reactor while the engine's thread runs foreign code.
pub(super) struct Custody {
    state: Mutex<State>,
    /// Notified when the engine has ended, or when the sleeping relief thread must wake up.
    changed: Condvar,
    /// The threads that [`join`](Self::join) awaits: the engine's current thread, and the relief
    /// thread once it has started. Lock order: `state` before `threads`.
    threads: Mutex<HashMap<ThreadId, JoinHandle<()>>>,
}

struct State {
    reactor: Option<Box<dyn Work>>,
    /// The number of times that a thread has put the reactor into custody.
    puts: u64,
    /// The thread that last put the reactor into custody; `None` after the relief thread has taken
    /// the reactor.
    holder: Option<ThreadId>,
    relief: Relief,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relief {
    None,
    /// The relief thread checks the engine's thread every [`FOREIGN_CALL_LIMIT`].
    Watches,
    Sleeps,
}

/// A guard that marks the engine as ended when the engine's thread returns or panics. If the relief
/// thread has taken the reactor, the engine continues, and the guard of the replaced thread does
/// nothing.
struct EndGuard<'a> {
    custody: &'a Custody,
    is_over: bool,
}

impl Custody {
    /// Starts the engine's thread.
    pub(super) fn start(reactor: Box<dyn Work>) -> io::Result<Arc<Self>> {
        let custody = Arc::new(Self {
            state: Mutex::new(State {
                reactor: None,
                puts: 0,
                holder: None,
                relief: Relief::None,
                ended: false,
            }),
            changed: Condvar::new(),
            threads: Mutex::default(),
        });
        custody.spawn("rdmsg-engine", |custody| custody.serve(reactor))?;
        Ok(custody)
    }

    fn spawn(
        self: &Arc<Self>,
        name: &str,
        body: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> io::Result<()> {
        let custody = Arc::clone(self);
        let mut threads = lock(&self.threads);
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || body(&custody))?;
        threads.insert(thread.thread().id(), thread);
        Ok(())
    }

    /// Runs the engine until it ends or until the relief thread takes the reactor.
    fn serve(self: &Arc<Self>, reactor: Box<dyn Work>) {
        let mut guard = EndGuard {
            custody: self,
            is_over: false,
        };
        // Declared after the guard, so that a panic drops the reactor before the guard.
        let mut reactor = reactor;
        foreign::collect(true);
        while reactor.is_running() {
            reactor.step();
            let foreign_calls = foreign::take_foreign_calls();
            if foreign_calls.is_empty() {
                continue;
            }
            self.put(reactor);
            run(foreign_calls);
            let Some(back) = self.take_back() else {
                guard.is_over = true;
                return;
            };
            reactor = back;
        }
        drop(reactor);
    }

    fn put(self: &Arc<Self>, reactor: Box<dyn Work>) {
        let mut state = lock(&self.state);
        state.reactor = Some(reactor);
        state.puts += 1;
        state.holder = Some(thread::current().id());
        match state.relief {
            Relief::Watches => {}
            Relief::Sleeps => {
                state.relief = Relief::Watches;
                self.changed.notify_all();
            }
            // If the relief thread cannot be started, the engine does not continue until the
            // foreign code returns.
            Relief::None => {
                if self.spawn("rdmsg-relief", Self::relieve).is_ok() {
                    state.relief = Relief::Watches;
                }
            }
        }
    }

    /// Takes the reactor out of custody. Returns `None` if the relief thread has already taken it.
    fn take_back(&self) -> Option<Box<dyn Work>> {
        let mut state = lock(&self.state);
        if state.holder != Some(thread::current().id()) {
            return None;
        }
        state.reactor.take()
    }

    /// Runs the relief thread.
    fn relieve(self: &Arc<Self>) {
        let (mut seen, mut idle) = (0, 0);
        let mut state = lock(&self.state);
        let reactor = loop {
            if state.ended {
                return;
            }
            let is_overdue = state.reactor.is_some() && state.puts == seen;
            if is_overdue && let Some(reactor) = state.reactor.take() {
                break reactor;
            }
            idle = if state.puts == seen { idle + 1 } else { 0 };
            seen = state.puts;
            state = self.wait_for_change(state, idle > IDLE_CHECKS);
        };
        state.relief = Relief::None;
        // The replaced thread may be blocked forever, so `join` must not wait for it.
        if let Some(holder) = state.holder.take() {
            lock(&self.threads).remove(&holder);
        }
        drop(state);
        foreign::collect(true);
        debug!(
            Engine,
            "engine: a waker or the logger has blocked the engine's thread for at least \
             {FOREIGN_CALL_LIMIT:?}; another thread takes over"
        );
        self.serve(reactor);
    }

    fn wait_for_change<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        sleeps: bool,
    ) -> MutexGuard<'a, State> {
        if !sleeps {
            return unpoisoned(self.changed.wait_timeout(state, FOREIGN_CALL_LIMIT)).0;
        }
        state.relief = Relief::Sleeps;
        let is_needless = |state: &mut State| !state.ended && state.relief == Relief::Sleeps;
        unpoisoned(self.changed.wait_while(state, is_needless))
    }

    /// Waits until the engine and its threads have ended, except for threads that are blocked in
    /// foreign code. Fails if one of the threads panicked.
    pub(super) fn join(&self) -> thread::Result<()> {
        let state = lock(&self.state);
        drop(self.changed.wait_while(state, |state| !state.ended));
        let mut threads = lock(&self.threads);
        let mut all = Ok(());
        for (_, thread) in threads.drain() {
            if let Err(panic) = thread.join() {
                all = Err(panic);
            }
        }
        all
    }
}

fn run(foreign_calls: Vec<Arc<dyn foreign::ForeignCall>>) {
    foreign::collect(false);
    for foreign_call in foreign_calls {
        foreign_call.run();
    }
    foreign::collect(true);
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let foreign_calls = foreign::take_foreign_calls();
        if !foreign_calls.is_empty() {
            // The remaining foreign code may block this thread. A program that waits for the end of
            // the engine must not wait for this code. This thread therefore first removes itself
            // from the threads that `join` awaits.
            lock(&self.custody.threads).remove(&thread::current().id());
        }
        lock(&self.custody.state).ended = true;
        self.custody.changed.notify_all();
        run(foreign_calls);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A test reactor whose steps are closures. It runs until the sender is dropped. Dropping the
    /// reactor sends the id of the current thread.
    struct Script {
        steps: Receiver<Box<dyn FnOnce() + Send>>,
        is_over: bool,
        dropped: Sender<ThreadId>,
    }

    impl Work for Script {
        fn is_running(&self) -> bool {
            !self.is_over
        }

        fn step(&mut self) {
            match self.steps.recv() {
                Ok(step) => step(),
                Err(_) => self.is_over = true,
            }
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = self.dropped.send(thread::current().id());
        }
    }

    type Steps = Sender<Box<dyn FnOnce() + Send>>;

    fn start() -> (Arc<Custody>, Steps, Receiver<ThreadId>) {
        let (steps, script) = channel();
        let (dropped, drops) = channel();
        let script = Script {
            steps: script,
            is_over: false,
            dropped,
        };
        (Custody::start(Box::new(script)).unwrap(), steps, drops)
    }

    /// Returns the id of the thread that runs the next step.
    fn thread_of(steps: &Steps) -> ThreadId {
        let (sender, receiver) = channel();
        let step = move || sender.send(thread::current().id()).unwrap();
        steps.send(Box::new(step)).unwrap();
        receiver.recv().unwrap()
    }

    #[test]
    fn foreign_code_runs_in_the_calling_thread() {
        let (custody, steps, drops) = start();
        let (calls, called) = channel();
        for _ in 0..1000 {
            let calls = calls.clone();
            let step = move || {
                let finds = thread::current().id();
                let code = move || calls.send((finds, thread::current().id())).unwrap();
                foreign::call_once(code);
            };
            steps.send(Box::new(step)).unwrap();
            let (finds, runs) = called.recv().unwrap();
            assert_eq!(finds, runs);
        }
        drop(steps);
        assert!(custody.join().is_ok());
        assert!(drops.recv().is_ok());
    }

    #[test]
    fn foreign_code_that_blocks_is_relieved() {
        let (custody, steps, drops) = start();
        let mut before = thread_of(&steps);
        let mut leaves = Vec::new();
        for _ in 0..3 {
            let (leave, left) = channel::<()>();
            let step = || foreign::call_once(move || assert!(left.recv().is_err()));
            steps.send(Box::new(step)).unwrap();
            let after = thread_of(&steps);
            assert_ne!(after, before, "the relief thread must run the step");
            before = after;
            leaves.push(leave);
        }
        // Each replaced thread ends when its foreign code returns, and runs no further step.
        leaves.clear();
        for _ in 0..100 {
            thread_of(&steps);
        }
        let (leave, left) = channel::<()>();
        let step = || foreign::call_once(move || assert!(left.recv().is_err()));
        steps.send(Box::new(step)).unwrap();
        drop(steps);
        assert!(custody.join().is_ok(), "join must not await foreign code");
        assert!(drops.recv().is_ok());
        drop(leave);
    }

    #[test]
    fn foreign_code_may_wait_for_the_end() {
        let (custody, steps, _drops) = start();
        let (done, ended) = channel();
        let waits = Arc::clone(&custody);
        let step = || {
            foreign::call_once(move || {
                waits.join().unwrap();
                done.send(()).unwrap();
            });
        };
        steps.send(Box::new(step)).unwrap();
        drop(steps);
        assert!(ended.recv().is_ok());
    }

    #[test]
    fn engine_that_panics_still_runs_its_foreign_calls() {
        let (custody, steps, drops) = start();
        let (calls, called) = channel();
        let step = || {
            foreign::call_once(|| panic!("foreign code that fails"));
            foreign::call_once(move || calls.send(()).unwrap());
            panic!("a step that fails");
        };
        steps.send(Box::new(step)).unwrap();
        let _ = custody.join();
        assert!(drops.recv().is_ok());
        assert!(called.recv().is_ok());
    }
}
