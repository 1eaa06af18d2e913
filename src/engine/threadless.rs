//! An engine without a thread: the threads that give it work do the work.
//!
//! It serves connections within the process only, because nothing waits for descriptors. Threads
//! that wait handle deadlines that have passed, and so does each thread that has work. No timer
//! wakes a task.

use std::{
    cell::Cell,
    fmt,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use super::{command::Command, exit::Registration, reactor::Reactor, relief::Work};
use crate::{
    os::{foreign, lock},
    poll::{Mailbox, Reader},
    status::OsError,
    transport::{Budget, ConnectionManager, EngineLimits},
};

/// The longest wait for a change before [`Threadless::join`] serves again.
const LOOK: Duration = Duration::from_millis(100);

/// See the top of this file.
pub(super) struct Threadless {
    /// `None` after the engine's end.
    reactor: Mutex<Option<Box<Reactor>>>,
    plan: Mutex<Plan>,
    /// Notified when the plan has changed.
    changed: Condvar,
}

/// The state of the engine after the last service.
#[derive(Default)]
struct Plan {
    /// The next deadline.
    due: Option<Instant>,
    has_ended: bool,
}

thread_local! {
    /// Whether this thread is in a reactor.
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

impl Threadless {
    /// Makes an engine with limits of its own, so that no other engine has to serve it.
    pub(super) fn start() -> Result<(Arc<Self>, Arc<Mailbox<Command>>), OsError> {
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
            Registration::nowhere(),
        )?;
        *lock(&engine.reactor) = Some(Box::new(reactor));
        Ok((engine, commands))
    }
}

impl Reader for Threadless {
    /// Does the work that there is, up to the bound of [`Reactor::settle`]. A thread that is in a
    /// reactor already leaves the work to the outer call.
    fn serve(&self) {
        if SERVES.get() {
            return;
        }
        let service = Service::begin();
        {
            // The thread that holds the lock may have taken the work of this one.
            let mut place = lock(&self.reactor);
            // A reactor that panics is dropped, which ends its connections.
            if let Some(mut reactor) = place.take() {
                let due = reactor.settle();
                *place = Some(reactor).filter(|reactor| reactor.is_running());
                *lock(&self.plan) = Plan {
                    due,
                    has_ended: place.is_none(),
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
    /// Waits until the engine has ended, which it was asked to do. Returns at once in a call from a
    /// reactor, which the outer call continues.
    pub(super) fn join(&self) {
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
            // Other threads may do the work. The bound is for a plan without a deadline.
            drop(
                self.changed
                    .wait_timeout(plan, left.map_or(LOOK, |left| left.min(LOOK))),
            );
        }
    }
}

/// The time that this thread is in a reactor, in which it collects foreign code.
struct Service {
    /// Whether it collected before.
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
