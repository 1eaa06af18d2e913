//! An engine without a thread: the threads that submit work to it also do the work.
//!
//! The engine serves only in-memory connections, because no thread waits for descriptors. Threads
//! that wait in a call or submit work also handle expired deadlines. No timer wakes an async task
//! when its deadline expires.

use std::{
    cell::Cell,
    fmt,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use super::Reactor;
use crate::{
    engine::{command::Command, destroyers::Destroyers, exit::Registration, relief_thread::Work},
    os::{foreign, lock},
    poll::{Mailbox, Reader},
    status::OsError,
    transport::{Budget, ConnectionManager, EngineLimits},
    transport_choice::Transport,
};

/// The maximum number of iterations in one call of [`Reactor::settle`]. Other threads can add work
/// faster than this thread handles it, so without a limit the call might never return. The other
/// threads then handle the remaining work that they added.
const MAX_ROUNDS: u32 = 64;

/// The maximum time that [`Threadless::join`] waits before it checks for pending work again.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// The state of an engine without a thread.
pub(in crate::engine) struct Threadless {
    /// The reactor; `None` after the engine has ended.
    reactor: Mutex<Option<Box<Reactor>>>,
    plan: Mutex<Plan>,
    /// Notified when `plan` has changed.
    changed: Condvar,
}

/// The result of the last [`settle`](Reactor::settle).
#[derive(Default)]
struct Plan {
    /// The next deadline.
    due: Option<Instant>,
    has_ended: bool,
}

thread_local! {
    /// Whether this thread is currently running a reactor.
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

impl Threadless {
    /// Creates an engine with its own memory limits. If several engines shared the limits, a thread
    /// that frees memory in another engine would have to run this engine.
    pub(in crate::engine) fn start() -> Result<(Arc<Self>, Arc<Mailbox<Command>>), OsError> {
        let engine = Arc::new(Self {
            reactor: Mutex::new(None),
            plan: Mutex::default(),
            changed: Condvar::new(),
        });
        let reader = || {
            let engine: Arc<dyn Reader> = Arc::<Self>::clone(&engine);
            Arc::downgrade(&engine)
        };
        let (commands, notices) = (
            Mailbox::with_reader(reader()),
            Mailbox::with_reader(reader()),
        );
        let reactor = Reactor::new(
            ConnectionManager::in_memory(&notices),
            Arc::clone(&commands),
            notices,
            Budget::new(EngineLimits::default()),
            Destroyers::default(),
            Registration::nowhere(),
        )?;
        *lock(&engine.reactor) = Some(Box::new(reactor));
        Ok((engine, commands))
    }
}

impl Reader for Threadless {
    /// Calls [`Reactor::settle`] once, which does pending work, and then runs the foreign calls
    /// that this work collected. If another engine's thread makes this call, the foreign calls stay
    /// collected, and that thread runs them later. If this thread is already running a reactor,
    /// returns immediately; the outer call then does the work.
    fn serve(&self) {
        if SERVES.get() {
            return;
        }
        let service = Service::begin();
        {
            // While this thread waits for the lock, the thread that holds the lock may do the work.
            let mut slot = lock(&self.reactor);
            // If `settle` panics, the reactor is dropped, which ends its connections.
            if let Some(mut reactor) = slot.take() {
                let due = reactor.settle();
                *slot = Some(reactor).filter(|reactor| reactor.is_running());
                *lock(&self.plan) = Plan {
                    due,
                    has_ended: slot.is_none(),
                };
            } else {
                lock(&self.plan).has_ended = true;
            }
            self.changed.notify_all();
        }
        let collects = service.collects;
        drop(service);
        if !collects {
            for foreign_call in foreign::take_foreign_calls() {
                foreign_call.run();
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        lock(&self.plan).due
    }
}

impl Threadless {
    /// Waits until the engine has ended. The caller must have requested the end of the engine. If
    /// this thread is already running a reactor, returns immediately; the outer call then continues
    /// the work.
    pub(in crate::engine) fn join(&self) {
        if SERVES.get() {
            return;
        }
        loop {
            self.serve();
            let plan = lock(&self.plan);
            if plan.has_ended {
                return;
            }
            let left = plan
                .due
                .map(|due| due.saturating_duration_since(Instant::now()));
            // Another thread may do the work and notify this thread. Without a notification, the
            // wait ends at the next deadline, or after [`MAX_WAIT`] at the latest.
            let left = left.map_or(MAX_WAIT, |left| left.min(MAX_WAIT));
            drop(plan.wait(&self.plan, &self.changed, Some(left)));
        }
    }
}

impl Reactor {
    /// Does all pending work without waiting, in at most [`MAX_ROUNDS`] iterations. Returns the
    /// next deadline.
    fn settle(&mut self) -> Option<Instant> {
        for _ in 0..MAX_ROUNDS {
            self.more = false;
            self.handle_cm_events(Transport::Memory);
            self.take_commands();
            self.take_notices();
            self.handle_deadlines();
            self.start_attempts();
            for key in std::mem::take(&mut self.unfinished) {
                self.poll(key);
            }
            let is_idle = self.commands.is_empty()
                && self.notices.is_empty()
                && self.unfinished.is_empty()
                && !self.manager.has_memory_reports();
            if is_idle && !self.more {
                return self.timers.next();
            }
        }
        // Work remains, so the next call is due now.
        Some(Instant::now())
    }
}

/// A guard that marks this thread as running a reactor. While the guard exists, the thread collects
/// foreign calls and does not run them.
struct Service {
    /// Whether the thread was already collecting foreign calls when the guard was created.
    collects: bool,
}

impl Service {
    fn begin() -> Self {
        SERVES.set(true);
        let collects = foreign::collects();
        foreign::collect(true);
        Self { collects }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        foreign::collect(self.collects);
        SERVES.set(false);
    }
}

impl fmt::Debug for Threadless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threadless").finish_non_exhaustive()
    }
}
