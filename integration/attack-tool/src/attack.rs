//! Attackers, each with one connection after the other. Seed and number of the connection decide
//! all of an attack but the times of the victim's answers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use clap::ValueEnum;
use fastrand::Rng;
use toolbox::random;

use crate::{
    arena::{Arena, Journal},
    connection::Attack,
    victim::SERVICES,
    wire::Descriptor,
};

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
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

/// How fast bytes are written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    Whole,
    Slow {
        bytes: usize,
        every: Duration,
    },
    /// No more comes.
    Stuck,
}

/// How a peer leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leave {
    Close,
    Reset,
    /// It closes its sending direction, and waits.
    Half,
}

/// A hostile peer's side of a connection.
pub(crate) trait Wire {
    /// Sends a frame.
    fn say(&mut self, frame: &[u8]);
    /// Sends a frame in something that is wrong.
    fn say_broken(&mut self, frame: &[u8], rng: &mut Rng) -> String;
    /// Begins an operation on memory of the victim: on that of the token, if there is one.
    fn operate(&mut self, token: Option<[u8; 24]>, rng: &mut Rng) -> String;
    fn set_pace(&mut self, pace: Pace);
    /// Whether the victim's READs are answered.
    fn serve(&mut self, serves: bool);
    /// Memory that the victim may read.
    fn memory(&mut self, len: u64) -> Descriptor;
    /// Writes and receives for this time, or until a frame has come.
    fn pump(&mut self, arena: &Arena<'_>, time: Duration);
    /// Writes, and receives nothing.
    fn write_only(&mut self, arena: &Arena<'_>);
    fn heard(&mut self) -> Option<Vec<u8>>;
    fn is_over(&self) -> bool;
    fn leave(self: Box<Self>, leave: Leave, arena: &Arena<'_>);
}

/// The data frames that a hello allows before the first grant.
pub(crate) fn credits(hello: &[u8]) -> u32 {
    let at = |at: usize| {
        hello
            .get(at..at + 2)
            .map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
    };
    match at(10) {
        0 => at(8).into(),
        credits => credits.into(),
    }
}

/// One thread of attackers, which has one connection after the other.
#[derive(Debug)]
pub(crate) struct Attacker {
    /// The kinds among which it chooses.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) seed: u64,
    /// The number of its next connection.
    pub(crate) next: AtomicU64,
    /// Whether it has this one again and again.
    pub(crate) repeats: bool,
    pub(crate) journal: Journal,
}

impl Kind {
    /// Whether it takes long and does little, so that there are many at a time.
    pub(crate) fn is_slow(self) -> bool {
        match self {
            Self::Silent | Self::Announce | Self::Trickle | Self::Deaf => true,
            Self::Setup
            | Self::Mutants
            | Self::Pings
            | Self::Grants
            | Self::Storm
            | Self::Memory => false,
        }
    }

    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl Attacker {
    /// Attacks until the end.
    pub(crate) fn run(&self, arena: &Arena<'_>) {
        while !arena.is_over() && !self.kinds.is_empty() {
            let step = u64::from(!self.repeats);
            let number = self.next.fetch_add(step, Ordering::Relaxed);
            let mut rng = random(&[self.seed, number]);
            let kind = self.kinds[rng.usize(0..self.kinds.len())];
            let service = rng.usize(0..SERVICES.len());
            let name = SERVICES[service];
            self.journal
                .add(format!("connection {number}: {} to {name}", kind.name()));
            let attack = Attack::new(arena, &self.journal, service, rng);
            if let Err(error) = attack.run(kind) {
                self.journal.add(format!("the connection ends: {error:#}"));
                arena.pause(Duration::from_millis(20));
            }
        }
    }
}
