//! Closes connections when the process exits normally, as the kernel does for sockets.
//!
//! To close a connection, its engine must exchange frames with the peer, but the engine's thread
//! ends together with the process. The first engine therefore registers an exit handler. The
//! handler makes all engines close their connections, and waits for them. The wait has a limit: the
//! longest time that the close of an open connection may take, plus [`MARGIN`]. Two cases need
//! care:
//!
//! * A forked child inherits the handler, but no engine thread. It may also inherit a locked list
//!   whose lock is never released. So each process has a separate list of its own engines.
//! * An engine's own thread may end the process, within a waker or a logger that it calls. The
//!   thread holds no lock during such a call, so the engine's
//!   [relief thread](super::relief_thread) can close the connections.

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
    /// The engines whose threads are running, including engines without handles that are still
    /// closing connections.
    running: Mutex<Vec<Arc<Running>>>,
    /// Notified when an engine ends.
    ended: Condvar,
}

/// The time that the exit handler waits beyond the longest time limit of a close, so that the
/// engine can still report a close that reached this limit. After that wait, the handler waits at
/// most this time again for log lines.
const MARGIN: Duration = Duration::from_secs(1);

/// An engine whose thread is running or about to start.
struct Running {
    mailbox: Arc<Mailbox<Command>>,
    /// The number of open connections, by the time limit for closing them.
    open_connections: Mutex<BTreeMap<Duration, usize>>,
    /// Whether the exit handler waits for this engine.
    awaited: AtomicBool,
}

impl Running {
    /// Returns the longest time limit for closing one of the open connections. Returns `None` if
    /// no connection is open.
    fn longest(&self) -> Option<Duration> {
        lock(&self.open_connections).keys().next_back().copied()
    }
}

/// Removes the engine from the list of running engines when dropped.
pub(super) struct Registration(Option<Arc<Running>>);

/// Adds an engine to the list of running engines. The exit handler sends [`Command::Exit`] to its
/// mailbox.
pub(super) fn register(mailbox: Arc<Mailbox<Command>>) -> Result<Registration, OsError> {
    let running = Arc::new(Running {
        mailbox,
        open_connections: Mutex::default(),
        awaited: AtomicBool::new(false),
    });
    let mut all = lock(&ENGINES.get().running);
    if !REGISTERED.load(Ordering::Relaxed) {
        os::at_exit(close_all)?;
        REGISTERED.store(true, Ordering::Relaxed);
    }
    all.push(Arc::clone(&running));
    Ok(Registration(Some(running)))
}

impl Registration {
    /// Returns a registration without effect, for an engine that serves only connections within the
    /// process. The exit handler does not close these connections, because their peers end together
    /// with the process.
    pub(super) fn nowhere() -> Self {
        Self(None)
    }

    fn is_of(&self, running: &Arc<Running>) -> bool {
        self.0.as_ref().is_some_and(|own| Arc::ptr_eq(own, running))
    }

    /// Adds a connection whose close may take up to `time_limit`.
    pub(super) fn connection_opened(&self, time_limit: Duration) {
        if let Some(running) = &self.0 {
            *lock(&running.open_connections)
                .entry(time_limit)
                .or_default() += 1;
        }
    }

    /// Sends a command to all other engines of this process.
    pub(super) fn send_to_others(&self, command: impl Fn() -> Command) {
        let all = lock(&ENGINES.get().running);
        for other in all.iter().filter(|other| !self.is_of(other)) {
            other.mailbox.send(command());
        }
    }

    /// Removes an ended connection that was added with this time limit.
    pub(super) fn connection_closed(&self, time_limit: Duration) {
        let Some(running) = &self.0 else { return };
        let mut all = lock(&running.open_connections);
        match all.get_mut(&time_limit) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&time_limit)),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Engines { running, ended } = ENGINES.get();
        lock(running).retain(|running| !self.is_of(running));
        ended.notify_all();
    }
}

/// The exit handler: closes all connections. It uses no thread-local values that have a destructor,
/// because they are destroyed before exit handlers run. It does not log, because the process may be
/// exiting from within a logger.
extern "C" fn close_all() {
    let Engines { running, ended } = ENGINES.get();
    let all = lock(running);
    let mut bound = Duration::ZERO;
    for running in all.iter() {
        // Read the limit before the command is sent, because the command makes the engine end
        // connections and remove their limits.
        let longest = running.longest();
        running.mailbox.send(Command::Exit);
        if let Some(longest) = longest {
            running.awaited.store(true, Ordering::Relaxed);
            bound = bound.max(longest + MARGIN);
        }
    }
    let is_awaited = |running: &Arc<Running>| running.awaited.load(Ordering::Relaxed);
    drop(all.wait_while(running, ended, Some(bound), |all| {
        all.iter().any(is_awaited)
    }));
    // An engine's thread may have passed log lines to another thread. Wait until they are logged.
    foreign::wait_for_log(MARGIN);
}
