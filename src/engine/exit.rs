//! What a process that ends normally still does for its connections, as a kernel does for sockets:
//! it closes them.
//!
//! A close takes an exchange with the peer, and a process that ends takes the engines' threads
//! along. So the first engine registers an exit handler, which has all engines close what is open
//! and waits for those that have connections, each for at most as long as its connections may take.
//! Two things could go wrong:
//!
//! * A forked child has the list and the handler, but no thread of any engine, and perhaps a lock
//!   that nobody will ever give back. It is another process than the one that was noted, and does
//!   nothing.
//! * The thread that ends the process may be an engine's own, in a waker or a logger. It holds no
//!   lock then, and the engine's [relief](super::relief) closes the connections.

use std::{
    collections::BTreeMap,
    process,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use super::command::Command;
use crate::{
    foreign,
    status::OsError,
    sync::{Mailbox, lock},
    sys,
};

/// The engines whose threads run, those included that finish closing after their last handle is
/// gone.
static RUNNING: Mutex<Vec<Arc<Running>>> = Mutex::new(Vec::new());

/// One of them has ended.
static ENDED: Condvar = Condvar::new();

/// The process whose engines these are; 0 before there is one.
static OWNER: AtomicU32 = AtomicU32::new(0);

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
    let mut all = lock(&RUNNING);
    let this_process = process::id();
    match OWNER.load(Ordering::Acquire) {
        0 => sys::at_exit(close_all)?,
        owner if owner == this_process => {}
        // A fork: those that the list names are another process's. The handler was inherited.
        _ => all.clear(),
    }
    OWNER.store(this_process, Ordering::Release);
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
        lock(&RUNNING).retain(|running| !Arc::ptr_eq(running, &self.0));
        ENDED.notify_all();
    }
}

/// The exit handler. It uses nothing of the thread that is destroyed before exit handlers run, and
/// does not log: a logger may be what ends the process.
extern "C" fn close_all() {
    if OWNER.load(Ordering::Acquire) != process::id() {
        return;
    }
    let all = lock(&RUNNING);
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
    let waited = ENDED.wait_timeout_while(all, bound, |all| all.iter().any(is_awaited));
    drop(waited);
    // The thread that ended the last engine may have left its lines to another thread.
    foreign::wait_for_log(MARGIN);
}
