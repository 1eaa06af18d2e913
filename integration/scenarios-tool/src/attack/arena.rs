//! Attackers, each with one connection after the other. The seed and the connection's number decide
//! all of an attack but the times of the victim's answers.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use rdmsg::TransportChoice;
use toolbox::random;

use super::{connection::Attack, victim::SERVICES};

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// Sends a request with wrong numbers
    Setup,
    /// Connects, says nothing or the beginning of a request
    Silent,
    /// Sends valid frames, some of them changed
    Mutants,
    /// Announces large messages and serves none
    Announce,
    /// Announces large messages and serves them slowly
    Trickle,
    /// Floods with pings
    Pings,
    /// Floods with grants
    Grants,
    /// Connects and leaves, again and again
    Storm,
    /// Sends messages and takes no echo
    Deaf,
    /// Reads, writes and changes memory
    Memory,
}

impl Kind {
    /// Whether it takes long and does little, so that there are many at a time.
    pub(super) fn is_slow(self) -> bool {
        matches!(
            self,
            Self::Silent | Self::Announce | Self::Trickle | Self::Deaf
        )
    }
}

/// The state that all attackers share.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) services: Vec<SocketAddr>,
    pub(super) transport: TransportChoice,
    /// The next turns to connect and to write, for all threads together.
    pub(super) connects: Mutex<Instant>,
    pub(super) writes: Mutex<Instant>,
    /// The number of frames and PDUs with something wrong.
    pub(super) mutations: AtomicU64,
    /// The end of the present attack.
    pub(super) end: Mutex<Instant>,
}

impl Arena {
    pub(super) fn new(services: Vec<SocketAddr>, transport: TransportChoice) -> Self {
        let now = || Mutex::new(Instant::now());
        Self {
            services,
            transport,
            connects: now(),
            writes: now(),
            mutations: AtomicU64::new(0),
            end: now(),
        }
    }

    pub(super) fn end(&self) -> Instant {
        *lock(&self.end)
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.end()
    }

    /// Waits until then, or until the attack is over.
    fn pause_until(&self, time: Instant) {
        thread::sleep(
            time.min(self.end())
                .saturating_duration_since(Instant::now()),
        );
    }

    pub(super) fn pause(&self, time: Duration) {
        self.pause_until(Instant::now() + time);
    }

    /// Waits for a turn to connect. Returns whether it has come before the end of the attack.
    pub(super) fn may_connect(&self) -> bool {
        self.turn(
            &self.connects,
            if self.transport == TransportChoice::Rdma {
                8
            } else {
                150
            },
        )
    }

    /// As `may_connect`, for a turn to write.
    pub(super) fn may_write(&self) -> bool {
        self.turn(
            &self.writes,
            if self.transport == TransportChoice::Rdma {
                200
            } else {
                4000
            },
        )
    }

    fn turn(&self, next: &Mutex<Instant>, per_second: u32) -> bool {
        let mut next = lock(next);
        // Unused turns are lost, so that no burst follows a pause.
        let turn = next.max(Instant::now());
        *next = turn.min(self.end()) + Duration::from_secs(1) / per_second;
        drop(next);
        self.pause_until(turn);
        !self.is_over()
    }
}

/// One thread, which has one connection after the other.
#[derive(Debug)]
pub(super) struct Attacker {
    /// The kinds among which it chooses.
    pub(super) kinds: Vec<Kind>,
    pub(super) seed: u64,
    /// The number of its next connection, and the distance to the one after that.
    pub(super) next: AtomicU64,
    pub(super) step: u64,
    /// The actions on its last connection.
    pub(super) journal: Mutex<Vec<String>>,
}

impl Attacker {
    /// Attacks until the end.
    pub(super) fn run(&self, arena: &Arena) {
        while !arena.is_over() && !self.kinds.is_empty() {
            let number = self.next.fetch_add(self.step, Relaxed);
            let mut rng = random(&[self.seed, number]);
            let kind = self.kinds[rng.usize(0..self.kinds.len())];
            let service = rng.usize(0..SERVICES.len());
            lock(&self.journal).clear();
            let name = SERVICES[service];
            self.note(format_args!("connection {number}: {kind:?} to {name}"));
            let connections = if kind == Kind::Storm {
                1..=rng.u32(2..8)
            } else {
                1..=1
            };
            for _ in connections {
                match Attack::open(arena, self, service, kind, rng.fork()) {
                    Ok(attack) => attack.run(kind),
                    Err(error) => {
                        self.note(format_args!("the connection ends: {error:#}"));
                        arena.pause(Duration::from_millis(20));
                    }
                }
            }
        }
    }

    pub(super) fn note(&self, action: impl fmt::Display) {
        lock(&self.journal).push(action.to_string());
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
