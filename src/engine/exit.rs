//! Closes the connections when the process ends normally, as a kernel does for sockets.
//!
//! A close is an exchange with the peer, and the end of a process ends the engines' threads. So the
//! first engine registers an exit handler. It has all engines close their connections, and waits
//! for each engine within the longest time limit of its connections. Two cases need care:
//!
//! * A forked child inherits the handler, but no thread of any engine, and perhaps a list whose
//!   lock is never released. So each process has a list of its own, with its own engines.
//! * The thread that ends the process may be an engine's own, in a waker or a logger. It holds no
//!   lock then, so the engine's [relief](super::relief) closes the connections.

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
    /// The engines whose threads run, including engines without handles that still close
    /// connections.
    running: Mutex<Vec<Arc<Running>>>,
    /// Notified when an engine has ended.
    ended: Condvar,
}

/// The additional time for the report of a connection whose close took all of its `close_timeout`.
const MARGIN: Duration = Duration::from_secs(1);

/// An engine whose thread runs, or is about to.
struct Running {
    mailbox: Arc<Mailbox<Command>>,
    /// The number of connections with each `close_timeout`.
    time_limit: Mutex<BTreeMap<Duration, usize>>,
    /// Whether the exit handler waits for this engine.
    awaited: AtomicBool,
}

impl Running {
    /// Returns the longest time that a close may take; `None` without connections.
    fn longest(&self) -> Option<Duration> {
        lock(&self.time_limit).keys().next_back().copied()
    }
}

/// Keeps an engine in the list of running engines until it is dropped.
pub(super) struct Registration(Arc<Running>);

/// Enters an engine. The exit handler sends [`Command::Exit`] to its mailbox.
pub(super) fn register(mailbox: Arc<Mailbox<Command>>) -> Result<Registration, OsError> {
    let running = Arc::new(Running {
        mailbox,
        time_limit: Mutex::default(),
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
    /// Adds a connection whose close may take this time.
    pub(super) fn connection_opened(&self, time_limit: Duration) {
        *lock(&self.0.time_limit).entry(time_limit).or_default() += 1;
    }

    /// Sends a command to all other engines of this process.
    pub(super) fn send_to_others(&self, command: impl Fn() -> Command) {
        let all = lock(&ENGINES.get().running);
        for other in all.iter().filter(|other| !Arc::ptr_eq(other, &self.0)) {
            other.mailbox.send(command());
        }
    }

    /// Removes a connection with this time limit, which has ended.
    pub(super) fn connection_closed(&self, time_limit: Duration) {
        let mut all = lock(&self.0.time_limit);
        match all.get_mut(&time_limit) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&time_limit)),
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

/// The exit handler. It uses no thread-local values, which are destroyed before exit handlers run.
/// It does not log, because the logger may have ended the process.
extern "C" fn close_all() {
    let Engines { running, ended } = ENGINES.get();
    let all = lock(running);
    let mut bound = Duration::ZERO;
    for running in all.iter() {
        // The time is read before the command is sent, because connections end after it.
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
    // The thread that ended the last engine may have queued log lines for another thread.
    foreign::wait_for_log(MARGIN);
}
