//! Attacks a live listener with hostile peers while honest clients use the same listener.
//!
//! The victim is a separate process. This process contains the honest clients and the attackers.
//! The honest clients measure the durations of their operations and compare bytes. The attackers
//! use an independent implementation of the protocol. Quiet phases and attacks alternate.

mod arena;
mod connection;
mod mutation;
mod rdma;
mod session;
mod tcp;
mod verdict;
pub(crate) mod victim;

use std::{
    mem,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use rdmsg::Engine;
use toolbox::{Lab, Launch, TIME_LIMIT, frames as wire, retry};

use self::{
    arena::{Arena, Attacker, Kind, Site},
    victim::{HonestClient, Victim},
};
use crate::{
    health::{Health, settle},
    minutes,
};

/// The number of attacks. A quiet phase precedes the first attack and follows each attack.
const ROUNDS: u32 = 4;

/// The number of connection numbers per attacker thread. The first thread uses the numbers from 0,
/// the second thread the numbers from `NUMBERS`, and so on.
const NUMBERS: u64 = 1_000_000;

/// Attacks a live listener with hostile peers while honest clients use the listener
///
/// The victim is a process with three listeners: for messages, for messages with shared receives,
/// and for streams. It echoes all messages. Honest clients connect, send messages of 64 B and of
/// 1 MiB, measure each round trip, and compare each byte.
///
/// Attackers set up valid connections. Then they change the fields of frames and PDUs. They repeat,
/// omit, truncate or extend frames and PDUs, and write them at once or byte by byte. They announce
/// messages, but never serve the victim's READs of these messages, or serve them slowly. They also
/// flood the victim, send nothing, connect repeatedly, and disconnect after any byte.
///
/// Quiet phases and attacks alternate. The exit status is 0 if all of these conditions hold:
///
///   - No honest client gets an error or a wrong byte.
///   - The 99th percentile of each operation's duration is less than 10 times as long during
///     attacks as in quiet phases.
///   - After each attack, the victim has the same memory, descriptors, threads, connections and
///     budget as before.
///   - The victim does not panic, and logs at most 10 lines per second.
///
/// The attackers are limited, so that they do not use up the processors. All attackers together
/// make at most 150 connects and 4000 writes per second over TCP, and at most 8 connects and 200
/// writes per second over RDMA.
///
/// If the test fails, it prints the seed, and the number of each attacker's last connection for
/// `--connection`.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment, override_usage = "integration/attack [OPTIONS]")]
pub(crate) struct Options {
    /// Total duration in minutes, may be a fraction; with both transports, each gets half of it
    #[arg(long, value_name = "M", default_value = "10", value_parser = minutes)]
    minutes: Duration,
    /// Seed of all random choices [default: a random seed, which is printed]
    #[arg(long, value_name = "N", hide_default_value = true)]
    #[arg(default_value_t = fastrand::u64(..1 << 32))]
    seed: u64,
    /// Transports to attack: TCP is attacked on this machine, RDMA in the lab
    #[arg(long, value_enum, default_value_t = Over::Both)]
    transport: Over,
    /// Kinds of attack; can be repeated [default: all]
    #[arg(long, value_name = "KIND", value_enum)]
    only: Vec<Kind>,
    /// Repeat only the attack on the connection with this number; a failed run prints the numbers,
    /// and the --seed that must be passed with them
    #[arg(long, value_name = "NUMBER")]
    connection: Option<u64>,
    /// Lower limit in milliseconds: if the 99th percentile of quiet phases is shorter, use this
    /// value instead, because shorter times are random on a busy machine
    #[arg(long, value_name = "MS", default_value_t = 2)]
    floor: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Over {
    Tcp,
    Rdma,
    Both,
}

impl Options {
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        ensure!(
            cfg!(debug_assertions),
            "the victim needs debug assertions and overflow checks: build with the profile dev"
        );
        if self.transport == Over::Both {
            self.minutes /= 2;
        }
        if Lab::is_here() {
            return run(&self, &arena::RDMA).map(|()| ExitCode::SUCCESS);
        }
        let over_tcp = match self.transport {
            Over::Rdma => Ok(()),
            Over::Tcp | Over::Both => run(&self, &arena::TCP),
        };
        let mut status = ExitCode::SUCCESS;
        if self.transport != Over::Tcp {
            // The limit includes time for the victim to release its resources after each attack.
            let limit = self.minutes + Duration::from_secs(900);
            let launch = Launch::new("--cpus 2 --memory 2G", limit).native_where_possible()?;
            let seed = format!("--seed={}", self.seed);
            status = launch.argument(seed).run_without_names()?;
        }
        over_tcp.map(|()| status)
    }
}

/// Attacks one victim over one transport.
fn run(options: &Options, site: &'static Site) -> Result<()> {
    let name = format!("attack: {:?}", site.transport);
    let seed = options.seed;
    println!("{name} for {:?}, seed {seed}", options.minutes);
    let mut battle = AttackRun {
        victim: Victim::start(site)?,
        clients: victim::clients(site),
        engine: Engine::new()?,
        attackers: attackers(options, site),
        length: options.minutes / (2 * ROUNDS + 1),
    };
    let result = battle.rounds();
    battle.engine.shutdown();
    if result.is_err() {
        for Attacker { last, .. } in battle.attackers.iter().filter(|one| !one.last.is_empty()) {
            eprintln!("last attack of a thread: seed {seed}, {last}");
        }
    }
    result?;
    verdict::compare(Duration::from_millis(options.floor), &battle.clients)?;
    battle.victim.finish()?;
    println!("{name}, seed {seed}: passed");
    Ok(())
}

struct AttackRun {
    victim: Victim,
    clients: [HonestClient; 9],
    /// The engine of the honest clients.
    engine: Engine,
    attackers: Vec<Attacker>,
    /// The duration of one phase.
    length: Duration,
}

impl AttackRun {
    /// Runs all phases. Fails if the victim has more resources after an attack than before the
    /// first attack.
    fn rounds(&mut self) -> Result<()> {
        self.phase(false)?;
        let before = baseline(&mut self.victim)?;
        for _ in 0..ROUNDS {
            self.phase(true)?;
            let after = settle(&before, 0, || self.victim.health())?;
            let attackers = self.attackers.iter();
            let mutations: u64 = attackers.map(|attacker| attacker.mutations).sum();
            println!(
                "attack: {mutations} mutations; victim\n  before: {before:?}\n  after:  {after:?}"
            );
            self.phase(false)?;
        }
        Ok(())
    }

    /// Runs one phase: the honest clients and, if `attacks` is set, the attackers. Fails if a
    /// client fails, or if the victim has ended, panicked, or logged too many lines.
    fn phase(&mut self, attacks: bool) -> Result<()> {
        let (engine, end) = (&self.engine, Instant::now() + self.length);
        let arena = &Arena::new(self.victim.site, &self.victim.services, end);
        let worked = thread::scope(|scope| {
            for attacker in self.attackers.iter_mut().filter(|_| attacks) {
                scope.spawn(|| attacker.run(arena));
            }
            let clients = self.clients.iter_mut();
            let clients = clients.map(|client| scope.spawn(|| client.run(arena, engine, attacks)));
            let mut clients = clients.collect::<Vec<_>>().into_iter();
            clients.try_for_each(|client| client.join().expect("honest clients must not panic"))
        });
        self.victim.check()?;
        worked
    }
}

fn attackers(options: &Options, site: &Site) -> Vec<Attacker> {
    let attacker = |first: u64| Attacker {
        kinds: kinds(&options.only, first / NUMBERS >= site.busy),
        seed: options.seed,
        next: first,
        step: options.connection.is_none().into(),
        mutations: 0,
        last: String::new(),
    };
    match options.connection {
        Some(connection) => vec![attacker(connection)],
        None => (0..site.busy + site.slow)
            .map(|thread| attacker(thread * NUMBERS))
            .collect(),
    }
}

/// Returns the kinds of attack from which an attacker thread chooses: the slow kinds if `is_slow`
/// is set, otherwise the other kinds. If `Mutants` is included, it makes up about half of the
/// returned elements, because mutants cover most of the protocol.
fn kinds(only: &[Kind], is_slow: bool) -> Vec<Kind> {
    let all = Kind::value_variants().iter().copied();
    let chosen = all.filter(|kind| only.is_empty() || only.contains(kind));
    let mut kinds: Vec<_> = chosen.filter(|kind| kind.is_slow() == is_slow).collect();
    if kinds.contains(&Kind::Mutants) {
        kinds.resize(2 * kinds.len() - 1, Kind::Mutants);
    }
    kinds
}

/// Waits until the victim's resources no longer change, and returns them. The victim has then
/// released the resources of all closed connections.
fn baseline(victim: &mut Victim) -> Result<Health> {
    let mut now = victim.health()?;
    retry(TIME_LIMIT / 2, Duration::from_millis(100), || {
        let then = mem::replace(&mut now, victim.health()?);
        let is_stable = now.has_no_leak_since(&then, 0) && then.has_no_leak_since(&now, 0);
        ensure!(is_stable, "the victim's resources still change: {now:?}");
        Ok(now.clone())
    })
}
