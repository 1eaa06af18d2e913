//! What a process that ends normally still does for its connections, as a kernel does for sockets:
//! it closes them.
//!
//! A close takes an exchange with the peer, and a process that ends takes the engines' threads
//! along. So the first engine registers an exit handler, which has all engines close what is open
//! and waits for those that have connections, each for at most as long as its connections may take.
//! Two things could go wrong:
//!
//! * A forked child inherits the handler, but no thread of any engine, and perhaps a list that is
//!   locked for good. It has a list of its own, with its own engines.
//! * The thread that ends the process may be an engine's own, in a waker or a logger. It holds no
//!   lock then, and the engine's [relief](super::relief) closes the connections.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::command::Command;
use crate::{
    os::{self, PerProcess, foreign, lock},
    poll::Mailbox,
    status::OsError,
};

static ENGINES: PerProcess<Engines> = PerProcess::new(Engines::default);

/// Whether this process or an ancestor has registered the handler.
static REGISTERED: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
struct Engines {
    /// The engines whose threads run, those included that finish closing after their last handle is
    /// gone.
    running: Mutex<Vec<Arc<Running>>>,
    /// One of them has ended.
    ended: Condvar,
}

/// Time for the report of a connection whose close took all of its `close_timeout`.
const MARGIN: Duration = Duration::from_secs(1);

/// An engine whose thread runs, or is about to.
struct Running {
    mailbox: Arc<Mailbox<Command>>,
    /// How many connections there are that may take so long to close.
    patience: Mutex<BTreeMap<Duration, usize>>,
    /// Whether the end of the process waits for it.
    awaited: AtomicBool,
}

impl Running {
    /// How long its connections may take to close; `None` without connections.
    fn longest(&self) -> Option<Duration> {
        lock(&self.patience).keys().next_back().copied()
    }
}

/// An engine's place among those that run, until it is dropped.
pub(super) struct Registration(Arc<Running>);

/// Enters an engine. It is told to exit through its mailbox.
pub(super) fn register(mailbox: Arc<Mailbox<Command>>) -> Result<Registration, OsError> {
    let running = Arc::new(Running {
        mailbox,
        patience: Mutex::default(),
        awaited: AtomicBool::new(false),
    });
    let mut all = lock(&ENGINES.get().running);
    if !REGISTERED.load(Ordering::Relaxed) {
        os::at_exit(close_all)?;
        REGISTERED.store(true, Ordering::Relaxed);
    }
    all.push(Arc::clone(&running));
    Ok(Registration(running))
}

impl Registration {
    /// A connection has come that may take so long to close.
    pub(super) fn connection_came(&self, patience: Duration) {
        *lock(&self.0.patience).entry(patience).or_default() += 1;
    }

    /// Such a connection has ended.
    pub(super) fn connection_went(&self, patience: Duration) {
        let mut all = lock(&self.0.patience);
        match all.get_mut(&patience) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&patience)),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Engines { running, ended } = ENGINES.get();
        lock(running).retain(|running| !Arc::ptr_eq(running, &self.0));
        ended.notify_all();
    }
}

/// The exit handler. It uses nothing of the thread that is destroyed before exit handlers run, and
/// does not log: a logger may be what ends the process.
extern "C" fn close_all() {
    let Engines { running, ended } = ENGINES.get();
    let all = lock(running);
    let mut bound = Duration::ZERO;
    for running in all.iter() {
        // Before it is told, because then there are fewer and fewer.
        let longest = running.longest();
        running.mailbox.send(Command::Exit);
        if let Some(longest) = longest {
            running.awaited.store(true, Ordering::Relaxed);
            bound = bound.max(longest + MARGIN);
        }
    }
    let is_awaited = |running: &Arc<Running>| running.awaited.load(Ordering::Relaxed);
    let waited = ended.wait_timeout_while(all, bound, |all| all.iter().any(is_awaited));
    drop(waited);
    // The thread that ended the last engine may have left its lines to another thread.
    foreign::wait_for_log(MARGIN);
}
