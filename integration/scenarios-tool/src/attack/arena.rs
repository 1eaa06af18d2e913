//! Attackers. Each makes one connection after the other. The seed and the connection's number
//! determine an attack, except for the times of the victim's answers.

use std::{
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use rdmsg::TransportChoice;
use toolbox::random;

use super::{connection::Attack, victim::SERVICES};

/// The numbers that depend on the transport.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) transport: TransportChoice,
    /// Number of attacker threads with busy connections, and with slow ones.
    pub(super) busy: u64,
    pub(super) slow: u64,
    /// Connects and writes per second, of all attackers together.
    connects: u32,
    writes: u32,
    /// The longest message that the victim accepts, in bytes. Over RDMA the attackers lock memory
    /// of this length.
    pub(super) longest: u64,
    /// The factor by which honest clients lengthen their pauses.
    pub(super) slower: u64,
}

pub(super) const TCP: Site = Site {
    transport: TransportChoice::Tcp,
    busy: 24,
    slow: 16,
    connects: 150,
    writes: 4000,
    longest: 64 << 20,
    slower: 1,
};

/// The device of the lab is software, on emulated processors.
pub(super) const RDMA: Site = Site {
    transport: TransportChoice::Rdma,
    busy: 3,
    slow: 5,
    connects: 8,
    writes: 200,
    longest: 16 << 20,
    slower: 5,
};

impl Site {
    pub(super) fn is_rdma(&self) -> bool {
        self.transport == TransportChoice::Rdma
    }
}

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
    /// Whether the attack takes long and does little, so that many run at a time.
    pub(super) fn is_slow(self) -> bool {
        matches!(
            self,
            Self::Silent | Self::Announce | Self::Trickle | Self::Deaf
        )
    }
}

/// The state of a phase that all its threads share.
#[derive(Debug)]
pub(super) struct Arena<'a> {
    pub(super) site: &'static Site,
    pub(super) services: &'a [SocketAddr],
    pub(super) end: Instant,
    /// The next turns to connect and to write, for all threads together.
    connects: Mutex<Instant>,
    writes: Mutex<Instant>,
}

impl<'a> Arena<'a> {
    pub(super) fn new(site: &'static Site, services: &'a [SocketAddr], end: Instant) -> Self {
        Self {
            site,
            services,
            end,
            connects: Mutex::new(Instant::now()),
            writes: Mutex::new(Instant::now()),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Waits until `time`, or until the phase is over.
    fn pause_until(&self, time: Instant) {
        thread::sleep(time.min(self.end).saturating_duration_since(Instant::now()));
    }

    pub(super) fn pause(&self, time: Duration) {
        self.pause_until(Instant::now() + time);
    }

    /// Waits for a turn to connect. Returns false if the attack ends before.
    pub(super) fn may_connect(&self) -> bool {
        self.turn(&self.connects, self.site.connects)
    }

    /// As `may_connect`, for a turn to write.
    pub(super) fn may_write(&self) -> bool {
        self.turn(&self.writes, self.site.writes)
    }

    fn turn(&self, next: &Mutex<Instant>, per_second: u32) -> bool {
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        // Unused turns are lost, so that no burst follows a pause.
        let turn = next.max(Instant::now());
        *next = turn.min(self.end) + Duration::from_secs(1) / per_second;
        drop(next);
        self.pause_until(turn);
        !self.is_over()
    }
}

/// A thread that opens one connection after the other.
#[derive(Debug)]
pub(super) struct Attacker {
    /// The kinds from which the thread chooses.
    pub(super) kinds: Vec<Kind>,
    pub(super) seed: u64,
    /// The number of the thread's next connection, and the distance to the following one.
    pub(super) next: u64,
    pub(super) step: u64,
    /// The number of mutated frames and PDUs.
    pub(super) mutations: u64,
    /// A description of the last connection.
    pub(super) last: String,
}

impl Attacker {
    /// Attacks until the end.
    pub(super) fn run(&mut self, arena: &Arena<'_>) {
        while !arena.is_over() && !self.kinds.is_empty() {
            let number = self.next;
            self.next += self.step;
            let mut rng = random(&[self.seed, number]);
            let kind = self.kinds[rng.usize(0..self.kinds.len())];
            let service = rng.usize(0..SERVICES.len());
            self.last = format!("connection {number}: {kind:?} to {}", SERVICES[service]);
            let connections = if kind == Kind::Storm {
                rng.u32(2..8)
            } else {
                1
            };
            for _ in 0..connections {
                match Attack::open(arena, self, service, kind, rng.fork()) {
                    Ok(attack) => attack.run(kind),
                    Err(_) => arena.pause(Duration::from_millis(20)),
                }
            }
        }
    }
}
