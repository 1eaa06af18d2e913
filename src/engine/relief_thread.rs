//! Keeps an engine running while a call blocks its thread.
//!
//! The engine's thread owns the reactor, and collects calls of foreign code: wakers and log lines.
//! Between two steps of the reactor, this thread puts the reactor and the calls into [`Custody`],
//! runs the calls one after another, and takes the reactor back. If the calls return quickly,
//! custody costs a short critical section per call and no thread switch. A second thread, the
//! relief thread, checks the custody every [`CALL_LIMIT`]. If two consecutive checks find the same
//! call running, the relief thread becomes the engine's thread: it runs the remaining calls, and
//! then takes the reactor. The replaced thread ends when its call returns:
//!
//! ```text
//!            put                     take back
//!   serves ──────> runs the calls ─────────> serves
//!                        │ the relief thread has taken over
//!                        └─────────────────> ends
//! ```
//!
//! Each call that blocks therefore delays the engine once, for at most two times [`CALL_LIMIT`]. If
//! the replaced thread was merely descheduled, the replacement does no harm. A shutdown of the
//! engine waits briefly for calls that still run, because a call can own a connection.
//!
//! Only one thread at a time runs the foreign code of a connection
//! ([`PendingWork`](foreign::PendingWork)), and only one thread at a time writes log lines. If a
//! waker never returns, it blocks one thread, and the connection's other wakers wait. Other
//! connections are not affected.
//!
//! The relief thread starts at the first collected call. It never starts in a program that uses
//! only blocking calls and does not log.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{Arc, Condvar, Mutex},
    thread::{self, JoinHandle, ThreadId},
    time::Duration,
};

use crate::os::{
    Guard,
    foreign::{self, ForeignCall},
    lock,
};

/// The interval between two checks of the relief thread. A call may run for one to two intervals
/// before the relief thread takes over. An ordinary waker returns much earlier. Even a delay of two
/// intervals is too short to affect a peer.
const CALL_LIMIT: Duration = Duration::from_millis(10);

/// If the relief thread finds no new call in more than this number of consecutive checks, it sleeps
/// until the engine's thread runs calls again.
const IDLE_CHECKS: u32 = 100;

/// The operations of a reactor that [`Custody`] calls.
pub(super) trait Work: Send {
    /// Returns whether the reactor is still running.
    fn is_running(&self) -> bool;

    /// Runs one step. Consecutive steps may run on different threads.
    fn step(&mut self);
}

/// Holds the reactor while the engine's thread runs the collected calls.
pub(super) struct Custody {
    state: Mutex<State>,
    /// Notified when the engine has ended, or when the sleeping relief thread must wake up.
    changed: Condvar,
    /// Notified when a thread of `outgoing` has completed its calls.
    left: Condvar,
    /// The threads that [`join`](Self::join) awaits: the engine's current thread, and the relief
    /// thread once it has started. Lock order: `state` before `threads`.
    threads: Mutex<HashMap<ThreadId, JoinHandle<()>>>,
}

struct State {
    reactor: Option<Box<dyn Work>>,
    /// The calls that have not begun.
    calls: VecDeque<Arc<dyn ForeignCall>>,
    /// The number of calls that have begun, plus twice the number of times that the reactor was in
    /// custody.
    progress: u64,
    /// The engine's thread, which runs the calls.
    holder: Option<ThreadId>,
    /// The threads that only complete their calls. These are replaced threads, and the engine's
    /// thread after the end of the engine. A call can own a connection.
    outgoing: Vec<ThreadId>,
    relief: Relief,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relief {
    None,
    /// The relief thread checks the engine's thread every [`CALL_LIMIT`].
    Watches,
    Sleeps,
}

/// A guard that marks the engine as ended when the engine's thread returns or panics. If the relief
/// thread has taken over, the engine continues, and the guard of the replaced thread does nothing.
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
                calls: VecDeque::new(),
                progress: 0,
                holder: None,
                outgoing: Vec::new(),
                relief: Relief::None,
                ended: false,
            }),
            changed: Condvar::new(),
            left: Condvar::new(),
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

    /// Runs the engine until it ends or until the relief thread takes over.
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
            let calls = foreign::take_foreign_calls();
            if calls.is_empty() {
                continue;
            }
            self.put(reactor, calls);
            let Some(back) = self.run_calls() else {
                guard.is_over = true;
                return;
            };
            reactor = back;
        }
        drop(reactor);
    }

    fn put(self: &Arc<Self>, reactor: Box<dyn Work>, calls: Vec<Arc<dyn ForeignCall>>) {
        let mut state = lock(&self.state);
        state.reactor = Some(reactor);
        state.calls = calls.into();
        // A relief thread that checks before this thread runs the first call must not find it
        // overdue.
        state.progress += 1;
        state.holder = Some(thread::current().id());
        self.watch(&mut state);
    }

    /// Makes the relief thread check the engine's thread.
    fn watch(self: &Arc<Self>, state: &mut State) {
        match state.relief {
            Relief::Watches => {}
            Relief::Sleeps => {
                state.relief = Relief::Watches;
                self.changed.notify_all();
            }
            // If the relief thread cannot be started, the engine does not continue until the calls
            // return.
            Relief::None => {
                if self.spawn("rdmsg-relief", Self::relieve).is_ok() {
                    state.relief = Relief::Watches;
                }
            }
        }
    }

    /// Runs the collected calls while the reactor is in custody, and then takes the reactor back.
    /// Returns `None` if the relief thread has replaced the calling thread.
    fn run_calls(&self) -> Option<Box<dyn Work>> {
        let this_thread = Some(thread::current().id());
        foreign::collect(false);
        let reactor = loop {
            let mut state = lock(&self.state);
            if state.holder != this_thread {
                self.leave(&mut state);
                break None;
            }
            state.progress += 1;
            let Some(call) = state.calls.pop_front() else {
                break state.reactor.take();
            };
            drop(state);
            call.run();
        };
        foreign::collect(true);
        reactor
    }

    /// Records that the calling thread has completed its calls.
    fn leave(&self, state: &mut State) {
        let this_thread = thread::current().id();
        state.outgoing.retain(|thread| *thread != this_thread);
        self.left.notify_all();
    }

    /// Runs the relief thread.
    fn relieve(self: &Arc<Self>) {
        let (mut seen, mut idle) = (0, 0);
        let mut state = lock(&self.state);
        loop {
            if state.ended {
                return;
            }
            if state.reactor.is_some() && state.progress == seen {
                break;
            }
            idle = if state.progress == seen { idle + 1 } else { 0 };
            seen = state.progress;
            state = self.wait_for_change(state, idle > IDLE_CHECKS);
        }
        // The replaced thread may be blocked forever, so `join` must not wait for its end.
        if let Some(replaced) = state.holder.replace(thread::current().id()) {
            lock(&self.threads).remove(&replaced);
            state.outgoing.push(replaced);
        }
        state.relief = Relief::None;
        foreign::collect(true);
        debug!(
            Engine,
            "engine: a waker or the logger has blocked the engine's thread for at least \
             {CALL_LIMIT:?}; another thread takes over"
        );
        state.calls.extend(foreign::take_foreign_calls());
        // This thread now needs a relief thread itself.
        if !state.calls.is_empty() {
            self.watch(&mut state);
        }
        drop(state);
        if let Some(reactor) = self.run_calls() {
            self.serve(reactor);
        }
    }

    fn wait_for_change<'a>(
        &'a self,
        mut state: Guard<'a, State>,
        sleeps: bool,
    ) -> Guard<'a, State> {
        if !sleeps {
            return state.wait(&self.state, &self.changed, Some(CALL_LIMIT));
        }
        state.relief = Relief::Sleeps;
        let is_needless = |state: &mut State| !state.ended && state.relief == Relief::Sleeps;
        state.wait_while(&self.state, &self.changed, None, is_needless)
    }

    /// Waits until the engine and its threads have ended. Some threads may still run calls, which
    /// may block forever. This function waits for these calls for at most the time `limit`, except
    /// for a call that runs on the calling thread. Fails if one of the threads panicked.
    pub(super) fn join(&self, limit: Duration) -> thread::Result<()> {
        let is_running = |state: &mut State| !state.ended;
        let is_awaited = |thread: &ThreadId| *thread != thread::current().id();
        let has_calls = |state: &mut State| state.outgoing.iter().any(is_awaited);
        let state = lock(&self.state);
        let state = state.wait_while(&self.state, &self.changed, None, is_running);
        drop(state.wait_while(&self.state, &self.left, Some(limit), has_calls));
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

fn run(calls: Vec<Arc<dyn ForeignCall>>) {
    foreign::collect(false);
    for call in calls {
        call.run();
    }
    foreign::collect(true);
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let calls = foreign::take_foreign_calls();
        let mut state = lock(&self.custody.state);
        state.ended = true;
        if !calls.is_empty() {
            // The remaining calls may block this thread forever, so `join` must not wait for its
            // end.
            lock(&self.custody.threads).remove(&thread::current().id());
            state.outgoing.push(thread::current().id());
        }
        drop(state);
        self.custody.changed.notify_all();
        run(calls);
        self.custody.leave(&mut lock(&self.custody.state));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A time limit that is never reached.
    const LONG: Duration = Duration::from_secs(60);

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
        let mut elsewhere = 0;
        for _ in 0..1000 {
            let calls = calls.clone();
            let step = move || {
                let finds = thread::current().id();
                let code = move || calls.send((finds, thread::current().id())).unwrap();
                foreign::call_once(code);
            };
            steps.send(Box::new(step)).unwrap();
            let (finds, runs) = called.recv().unwrap();
            elsewhere += usize::from(finds != runs);
        }
        // The relief thread runs a call if the machine deschedules the engine's thread before it.
        assert!(
            elsewhere < 100,
            "{elsewhere} of 1000 calls ran in another thread"
        );
        drop(steps);
        assert!(custody.join(LONG).is_ok());
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
        assert!(
            custody.join(Duration::ZERO).is_ok(),
            "join must not await foreign code"
        );
        assert!(drops.recv().is_ok());
        drop(leave);
    }

    #[test]
    fn join_waits_for_calls_that_return() {
        let (custody, steps, drops) = start();
        let (joined, joins) = channel::<()>();
        let resource = Arc::new(());
        let owned = Arc::clone(&resource);
        let step = || {
            foreign::call_once(move || {
                // The call outlives the engine long enough for a `join` that does not wait.
                drops.recv().unwrap();
                let _ = joins.recv_timeout(10 * CALL_LIMIT);
                drop(owned);
            });
        };
        steps.send(Box::new(step)).unwrap();
        drop(steps);
        assert!(custody.join(LONG).is_ok());
        assert_eq!(Arc::strong_count(&resource), 1);
        drop(joined);
    }

    #[test]
    fn calls_behind_a_blocked_call_run() {
        let (custody, steps, drops) = start();
        let ((leave, left), (leave_too, left_too)) = (channel::<()>(), channel::<()>());
        let (calls, called) = channel();
        let blocks = [left, left_too];
        let step = move || {
            for left in blocks {
                let calls = calls.clone();
                foreign::call_once(move || calls.send(thread::current().id()).unwrap());
                foreign::call_once(move || assert!(left.recv().is_err()));
            }
            foreign::call_once(move || calls.send(thread::current().id()).unwrap());
        };
        steps.send(Box::new(step)).unwrap();
        let ran: Vec<_> = (0..3).map(|_| called.recv().unwrap()).collect();
        assert_ne!(ran[0], ran[1], "a relief thread must run the calls");
        assert_ne!(ran[1], ran[2], "another relief thread must run the calls");
        let serves = thread_of(&steps);
        assert!(
            !ran[..2].contains(&serves),
            "a blocked thread cannot run a step"
        );
        drop((leave, leave_too));
        drop(steps);
        assert!(custody.join(LONG).is_ok());
        assert!(drops.recv().is_ok());
    }

    #[test]
    fn foreign_code_may_wait_for_the_end() {
        let (custody, steps, _drops) = start();
        let (done, ended) = channel();
        let waits = Arc::clone(&custody);
        let step = || {
            foreign::call_once(move || {
                waits.join(LONG).unwrap();
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
        let _ = custody.join(LONG);
        assert!(drops.recv().is_ok());
        assert!(called.recv().is_ok());
    }
}
