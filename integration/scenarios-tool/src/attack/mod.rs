//! Hostile peers of a live listener, while honest clients use it.
//!
//! The victim is a process of its own. This process has the honest clients, which measure and
//! compare, and the attackers, which speak the protocol by hand. Quiet phases and attacks
//! alternate.

mod arena;
mod connection;
mod honest;
mod mutation;
mod rdma;
mod session;
mod tcp;
pub(crate) mod victim;

use std::{
    mem,
    process::ExitCode,
    sync::{
        Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use rdmsg::{Engine, TransportChoice};
use toolbox::{Lab, Launch, frames as wire};

use self::{
    arena::{Arena, Attacker, Kind},
    honest::{Honest, Samples},
    victim::Victim,
};
use crate::{
    health::{Health, settle},
    minutes, seed, with_arguments,
};

/// Quiet phases, each followed by an attack.
const ROUNDS: usize = 4;

/// The least ratio of an operation's 99th percentiles in attacks and in quiet phases that fails.
const MOST: f64 = 10.0;

/// Threads of attackers whose connections are busy, and of those whose connections are slow.
const BUSY: u64 = 24;
const SLOW: u64 = 16;
/// The same over RDMA, on emulated processors.
const BUSY_OVER_RDMA: u64 = 3;
const SLOW_OVER_RDMA: u64 = 5;

/// The distance between the numbers of the first connections of two threads.
const NUMBERS: u64 = 1_000_000;

/// Hostile peers of a live listener, while honest clients use it
///
/// A process with three listeners (messages, messages with shared receives, streams) echoes all
/// messages. Honest clients send messages of 64 B and of 1 MiB, connect, measure each round
/// trip and compare each byte. Attackers set connections up as the protocol says, and then send
/// frames and PDUs with changed numbers, repeated, left out, cut or longer, in one piece or byte by
/// byte; they announce messages and serve none of them, or slowly; they flood, say nothing, connect
/// again and again, and leave at any byte.
///
/// Quiet phases and attacks alternate. It ends 0 if no honest client has an error or a wrong byte,
/// the 99th percentile of each of their operations during attacks stays below 10 times the quiet
/// one, and after each attack the victim has the memory, descriptors, threads, connections and
/// budget that it had before. The victim must not panic, and may log 10 lines a second.
///
/// Attackers of all kinds together make at most 150 connects and 4000 writes a second over TCP, and
/// 8 and 200 over RDMA, so that they do not use up the processors. If it fails it prints the seed,
/// and the actions on the last connection of each attacker.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment, override_usage = "integration/attack [OPTIONS]")]
pub(crate) struct Options {
    /// Minutes in all, fractions allowed; with both transports each takes half of them
    #[arg(long, value_name = "M", default_value = "10", value_parser = minutes)]
    minutes: Duration,
    /// The seed of all random choices [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The transports to attack: TCP on this machine, RDMA in the lab
    #[arg(long, value_enum, default_value_t = Over::Both)]
    transport: Over,
    /// The kinds of attack; may be repeated [default: all]
    #[arg(long, value_name = "KIND", value_enum)]
    only: Vec<Kind>,
    /// Repeat the attack on this connection alone, as a failed run with the same seed names it
    #[arg(long, value_name = "NUMBER")]
    connection: Option<u64>,
    /// The shortest 99th percentile in milliseconds that counts as a quiet one: on a busy machine
    /// a shorter one is chance
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
        let seed = seed(self.seed);
        if self.transport == Over::Both {
            self.minutes /= 2;
        }
        if Lab::is_here() {
            return run(&self, seed, TransportChoice::Rdma).map(|()| ExitCode::SUCCESS);
        }
        let over_tcp = match self.transport {
            Over::Rdma => Ok(()),
            Over::Tcp | Over::Both => run(&self, seed, TransportChoice::Tcp),
        };
        let mut status = ExitCode::SUCCESS;
        if self.transport != Over::Tcp {
            // After each attack the victim has a while to settle.
            let launch = Launch::new(1, self.minutes + Duration::from_secs(900));
            let launch = launch.option("--cpus", "2").option("--memory", "2G");
            status = with_arguments(launch.native_where_possible()?, seed).run_without_names()?;
        }
        over_tcp.map(|()| status)
    }
}

/// The present part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Honest clients wait.
    Pause,
    /// Honest clients work.
    Quiet(usize),
    /// Attackers work as well.
    Attack(usize),
    Over,
}

/// Attacks one victim, over one transport.
fn run(options: &Options, seed: u64, transport: TransportChoice) -> Result<()> {
    println!(
        "attack: {transport:?} for {:?}, seed {seed}",
        options.minutes
    );
    let (failed, failures) = channel();
    let mut victim = Victim::start(transport, failures)?;
    let arena = Arena::new(victim.services.clone(), transport);
    let attackers = attackers(options, seed, transport);
    let engine = Engine::new()?;
    let mut clients = honest::clients(transport).map(|client| (client, Samples::new()));
    let phase = RwLock::new(Phase::Pause);
    let result = thread::scope(|scope| {
        for (client, samples) in &mut clients {
            let (failed, engine, phase) = (failed.clone(), &engine, &phase);
            let addr = arena.services[client.service];
            scope.spawn(move || {
                if let Err(error) = client.run(addr, engine, transport, phase, samples) {
                    // It is not received after another failure.
                    let _ = failed.send(format!("the honest client {client}: {error:#}"));
                }
            });
        }
        let length = options.minutes / (2 * ROUNDS as u32);
        let result = rounds(&mut victim, &phase, &arena, &attackers, length);
        begin(&phase, Phase::Over);
        result
    });
    engine.shutdown();
    if result.is_err() {
        for (number, Attacker { journal, .. }) in attackers.iter().enumerate() {
            eprintln!(
                "attacker {number}, seed {seed}: {:#?}",
                arena::lock(journal)
            );
        }
    }
    result?;
    compare(Duration::from_millis(options.floor), &clients)?;
    victim.finish()?;
    println!("attack: {transport:?}, seed {seed}: all is well");
    Ok(())
}

/// Begins a phase when no operation of an honest client is in flight.
fn begin(phase: &RwLock<Phase>, next: Phase) {
    *phase.write().unwrap_or_else(PoisonError::into_inner) = next;
}

/// Runs all phases.
fn rounds(
    victim: &mut Victim,
    phase: &RwLock<Phase>,
    arena: &Arena,
    attackers: &[Attacker],
    length: Duration,
) -> Result<()> {
    let mut before = None;
    for round in 0..ROUNDS {
        begin(phase, Phase::Quiet(round));
        victim.look(length)?;
        begin(phase, Phase::Pause);
        let before = match &before {
            Some(before) => before,
            None => before.insert(baseline(victim)?),
        };
        *arena::lock(&arena.end) = Instant::now() + length;
        begin(phase, Phase::Attack(round));
        thread::scope(|scope| {
            for attacker in attackers {
                scope.spawn(|| attacker.run(arena));
            }
            let result = victim.look(length);
            *arena::lock(&arena.end) = Instant::now();
            result
        })?;
        begin(phase, Phase::Pause);
        victim.look(Duration::ZERO)?;
        let after = settle(before, || victim.health(), Health::is_as)?;
        let mutations = arena.mutations.load(Relaxed);
        println!("attack: {mutations} mutations\n  before: {before:?}\n  after:  {after:?}");
    }
    Ok(())
}

fn attackers(options: &Options, seed: u64, transport: TransportChoice) -> Vec<Attacker> {
    let (busy, slow) = match transport {
        TransportChoice::Rdma => (BUSY_OVER_RDMA, SLOW_OVER_RDMA),
        _ => (BUSY, SLOW),
    };
    let attacker = |first: u64| Attacker {
        kinds: kinds(&options.only, first / NUMBERS >= busy),
        seed,
        next: AtomicU64::new(first),
        step: options.connection.is_none().into(),
        journal: Mutex::default(),
    };
    let all = (0..busy + slow).map(|thread| thread * NUMBERS);
    match options.connection {
        Some(connection) => vec![attacker(connection)],
        None => all.map(attacker).collect(),
    }
}

/// The kinds among which a slow or a busy attacker chooses. Half of the busy ones send mutants,
/// because these reach the most of the protocol.
fn kinds(only: &[Kind], is_slow: bool) -> Vec<Kind> {
    let all = Kind::value_variants().iter().copied();
    let chosen = all.filter(|kind| only.is_empty() || only.contains(kind));
    let mut kinds: Vec<_> = chosen.filter(|kind| kind.is_slow() == is_slow).collect();
    if kinds.contains(&Kind::Mutants) {
        kinds.resize(2 * kinds.len() - 1, Kind::Mutants);
    }
    kinds
}

/// The victim's state after connections that clients have closed are released.
fn baseline(victim: &mut Victim) -> Result<Health> {
    let mut last = victim.health()?;
    settle(
        &last.clone(),
        || victim.health(),
        |now, _| {
            let then = mem::replace(&mut last, now.clone());
            now.is_as(&then) && then.is_as(now)
        },
    )
}

/// Prints the honest clients' 99th percentiles, and fails if those in attacks are too long.
fn compare(floor: Duration, clients: &[(Honest, Samples)]) -> Result<()> {
    let mut slow = Vec::new();
    for (client, samples) in clients {
        let quiet = percentile(samples, Phase::Quiet);
        let attacks = percentile(samples, Phase::Attack);
        let ratio = attacks.as_secs_f64() / quiet.max(floor).as_secs_f64();
        println!(
            "attack: {client:<18} {quiet:>9.3?} quiet, {attacks:>9.3?} in attacks: {ratio:.2}"
        );
        if quiet == Duration::MAX || ratio >= MOST {
            slow.push(client.to_string());
        }
    }
    ensure!(
        slow.is_empty(),
        "no operation, or {MOST} times as slow in attacks: {slow:?}"
    );
    Ok(())
}

/// The median of the phases' 99th percentiles: other programs of this machine spoil one phase, and
/// not most of them. A phase without an operation counts as an endless one.
fn percentile(samples: &Samples, phase: impl Fn(usize) -> Phase) -> Duration {
    let of_round = |round| {
        let of_phase = samples.iter().filter(|(at, _)| *at == phase(round));
        let mut times: Vec<_> = of_phase.map(|(_, time)| *time).collect();
        times.sort_unstable();
        let last = (times.len() * 99).div_ceil(100).checked_sub(1);
        last.map_or(Duration::MAX, |last| times[last])
    };
    let mut all: Vec<_> = (0..ROUNDS).map(of_round).collect();
    all.sort_unstable();
    all[ROUNDS / 2]
}
