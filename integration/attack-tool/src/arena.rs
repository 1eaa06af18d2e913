use std::{
    collections::VecDeque,
    fmt,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rdmsg::Transport;

/// The actions that are kept of a worker: its last connection, or a few short ones.
const KEPT: usize = 24;

/// Between two looks at whether an attack is over.
const LOOK: Duration = Duration::from_millis(50);

/// The state that all attackers of one attack share.
#[derive(Debug)]
pub(crate) struct Arena<'a> {
    pub(crate) services: &'a [SocketAddr],
    pub(crate) transport: Transport,
    pub(crate) rates: &'a Rates,
    /// The end of the attack.
    pub(crate) end: Instant,
    /// Whether it ends before.
    pub(crate) stopped: AtomicBool,
}

/// The rates of all attackers together, and their counts.
#[derive(Debug)]
pub(crate) struct Rates {
    pub(crate) connects: Rate,
    pub(crate) writes: Rate,
    /// Frames and PDUs with something wrong.
    pub(crate) mutations: AtomicU64,
}

/// So many turns in a second, for all threads together.
#[derive(Debug)]
pub(crate) struct Rate {
    interval: Duration,
    next: Mutex<Instant>,
    count: AtomicU64,
}

/// The last actions of a worker.
#[derive(Debug, Default)]
pub(crate) struct Journal(Mutex<VecDeque<String>>);

impl Arena<'_> {
    pub(crate) fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || Instant::now() >= self.end
    }

    /// Waits for this time, or until the attack is over.
    pub(crate) fn pause(&self, time: Duration) {
        let end = self.end.min(Instant::now() + time);
        thread::sleep(end.saturating_duration_since(Instant::now()));
    }
}

impl Rates {
    pub(crate) fn new(transport: Transport) -> Self {
        let (connects, writes) = match transport {
            Transport::Rdma => (8, 200),
            _ => (150, 4000),
        };
        Self {
            connects: Rate::new(connects),
            writes: Rate::new(writes),
            mutations: AtomicU64::new(0),
        }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connects, {} writes, {} mutations",
            self.connects.count.load(Ordering::Relaxed),
            self.writes.count.load(Ordering::Relaxed),
            self.mutations.load(Ordering::Relaxed)
        )
    }
}

impl Rate {
    fn new(per_second: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second,
            next: Mutex::new(Instant::now()),
            count: AtomicU64::new(0),
        }
    }

    /// Waits for a turn, unless the attack ends before it. Returns whether it has come.
    pub(crate) fn take(&self, arena: &Arena<'_>) -> bool {
        loop {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            if *next <= now {
                // Unused turns are lost, so that no burst follows a pause.
                *next = now.max(*next + self.interval);
                drop(next);
                self.count.fetch_add(1, Ordering::Relaxed);
                return !arena.is_over();
            }
            let left = *next - now;
            drop(next);
            if arena.is_over() {
                return false;
            }
            arena.pause(left.min(LOOK));
        }
    }
}

impl Journal {
    pub(crate) fn add(&self, action: impl Into<String>) {
        let mut actions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if actions.len() == KEPT {
            actions.pop_front();
        }
        actions.push_back(action.into());
    }
}

impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for action in &*actions {
            writeln!(f, "  {action}")?;
        }
        Ok(())
    }
}
