//! The attacker threads. Each thread opens one connection after another. An attack depends only on
//! the seed, on the number of the connection, and on the times at which the victim answers.

use std::{
    net::SocketAddr,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use rdmsg::TransportChoice;
use toolbox::{lock, random};

use super::{connection::Attack, victim::SERVICES};
use crate::plan::one_of;

/// The parameters of an attack over one transport.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) transport: TransportChoice,
    /// The number of attacker threads with busy connections.
    pub(super) busy: u64,
    /// The number of attacker threads with slow connections.
    pub(super) slow: u64,
    /// The maximum number of connects per second by all attackers together.
    connects: u32,
    /// The maximum number of writes per second by all attackers together.
    writes: u32,
    /// The length in bytes of the longest message that the victim accepts. Over RDMA, an attacker
    /// registers at most this much memory for the messages that it announces.
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

/// The values are low because the device is emulated in software, on emulated processors.
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
    /// Sends a request with wrong values
    Setup,
    /// Connects and sends nothing, or only the beginning of a request
    Silent,
    /// Sends frames, some of them valid and some mutated
    Mutants,
    /// Announces large messages and does not serve the victim's READs of them
    Announce,
    /// Announces large messages and serves the victim's READs of them slowly
    Trickle,
    /// Floods the victim with pings
    Pings,
    /// Floods the victim with grants of credits
    Grants,
    /// Connects and disconnects repeatedly
    Storm,
    /// Sends messages and does not receive their echoes
    Deaf,
    /// Reads and writes the victim's memory with valid and with wrong addresses
    Memory,
}

impl Kind {
    /// Returns true if connections of this kind last long and send little. Some attacker threads
    /// open only such connections, and the other threads open none of them.
    pub(super) fn is_slow(self) -> bool {
        matches!(
            self,
            Self::Silent | Self::Announce | Self::Trickle | Self::Deaf
        )
    }
}

/// The state that all threads of a phase share.
#[derive(Debug)]
pub(super) struct Arena<'a> {
    pub(super) site: &'static Site,
    pub(super) services: &'a [SocketAddr],
    pub(super) end: Instant,
    /// The earliest time at which any thread may connect next.
    connects: Mutex<Instant>,
    /// The earliest time at which any thread may write next.
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

    /// Waits until the rate limit permits a connect. Returns `false` if the phase ends first.
    pub(super) fn may_connect(&self) -> bool {
        self.wait_for_rate(&self.connects, self.site.connects)
    }

    /// Waits until the rate limit permits a write. Returns `false` if the phase ends first.
    pub(super) fn may_write(&self) -> bool {
        self.wait_for_rate(&self.writes, self.site.writes)
    }

    fn wait_for_rate(&self, next: &Mutex<Instant>, per_second: u32) -> bool {
        let mut next = lock(next);
        // If `next` is in the past, use the current time, so that threads do not connect or write
        // in a burst after a pause.
        let time = next.max(Instant::now());
        *next = time.min(self.end) + Duration::from_secs(1) / per_second;
        drop(next);
        self.pause_until(time);
        !self.is_over()
    }
}

/// An attacker thread, which opens one connection after another.
#[derive(Debug)]
pub(super) struct Attacker {
    /// The kinds of attack from which the thread chooses at random.
    pub(super) kinds: Vec<Kind>,
    pub(super) seed: u64,
    /// The number of this thread's next connection.
    pub(super) next: u64,
    /// The increment from one connection number to the next. With 0, the thread repeats the same
    /// connection.
    pub(super) step: u64,
    /// The number of mutated frames and PDUs sent so far.
    pub(super) mutations: u64,
    /// A description of the thread's last connection. It is printed if the test fails.
    pub(super) last: String,
}

impl Attacker {
    /// Opens connections until the phase ends.
    pub(super) fn run(&mut self, arena: &Arena<'_>) {
        while !arena.is_over() && !self.kinds.is_empty() {
            let number = self.next;
            self.next += self.step;
            let mut rng = random(&[self.seed, number]);
            let kind = one_of(&mut rng, &self.kinds);
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
