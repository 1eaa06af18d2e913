//! Runs quiet phases and attacks in turn, and judges them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use rdmsg::{Engine, Transport};
use toolbox::{Deadline, PATIENCE};

use crate::{
    Settings,
    arena::{Arena, Journal, Rates},
    attack::{Attacker, Kind},
    honest::{self, Honest},
    phases::{Phase, Phases},
    victim_process::{State, Victim},
};

/// Quiet phases, each followed by an attack.
const ROUNDS: usize = 4;

/// The times of the honest clients' 99th percentile in quiet phases that it may take in attacks.
const MOST: u32 = 10;

/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// Between two looks at a victim that settles.
const LOOK: Duration = Duration::from_millis(50);

/// Threads of attackers whose connections are busy, and of those whose connections are slow.
const BUSY: u64 = 24;
const SLOW: u64 = 16;
/// The same over RDMA, on emulated processors.
const BUSY_OVER_RDMA: u64 = 3;
const SLOW_OVER_RDMA: u64 = 5;

/// Between the numbers of the connections of two threads.
const NUMBERS: u64 = 1_000_000;

struct Judge<'a> {
    settings: &'a Settings,
    victim: Victim,
    clients: Vec<Arc<Honest>>,
    phases: Arc<Phases>,
    attackers: Vec<Attacker>,
    rates: Rates,
    started: Instant,
}

/// Attacks one victim, over one transport.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    println!(
        "attack: {:?} for {:?}, seed {}",
        settings.transport, settings.duration, settings.seed
    );
    let mut judge = Judge {
        settings,
        victim: Victim::start(settings)?,
        clients: honest::clients(settings.transport),
        phases: Arc::default(),
        attackers: attackers(settings),
        rates: Rates::new(settings.transport),
        started: Instant::now(),
    };
    let result = judge.run();
    if result.is_err() {
        eprintln!(
            "attack: the last actions of each attacker, seed {}",
            settings.seed
        );
        for (number, attacker) in judge.attackers.iter().enumerate() {
            eprint!("attacker {number}:\n{}", attacker.journal);
        }
    }
    result?;
    judge.victim.finish()?;
    println!(
        "attack: {:?}: {}, seed {}: all is well",
        settings.transport, judge.rates, settings.seed
    );
    Ok(())
}

fn attackers(settings: &Settings) -> Vec<Attacker> {
    let attacker = |next: u64, repeats: bool, is_slow: bool| Attacker {
        kinds: kinds(settings, is_slow),
        seed: settings.seed,
        next: AtomicU64::new(next),
        repeats,
        journal: Journal::default(),
    };
    let (busy, slow) = match settings.transport {
        Transport::Rdma => (BUSY_OVER_RDMA, SLOW_OVER_RDMA),
        _ => (BUSY, SLOW),
    };
    let is_slow = |number: u64| number / NUMBERS >= busy;
    if let Some(connection) = settings.connection {
        return vec![attacker(connection, true, is_slow(connection))];
    }
    let numbers = (0..busy + slow).map(|worker| worker * NUMBERS);
    numbers
        .map(|number| attacker(number, false, is_slow(number)))
        .collect()
}

/// The kinds among which a slow or a busy attacker chooses. Half of the busy ones send mutants,
/// because these reach the most of the protocol.
fn kinds(settings: &Settings, is_slow: bool) -> Vec<Kind> {
    let chosen = settings.kinds.iter().copied();
    let mut kinds: Vec<_> = chosen.filter(|kind| kind.is_slow() == is_slow).collect();
    if kinds.contains(&Kind::Mutants) {
        kinds.resize(2 * kinds.len() - 1, Kind::Mutants);
    }
    kinds
}

impl Judge<'_> {
    fn run(&mut self) -> Result<()> {
        let engine = Engine::new()?;
        let threads: Vec<_> = self
            .clients
            .iter()
            .zip(self.victim.services.iter().cycle())
            .map(|(client, addr)| {
                client.start(*addr, &engine, self.settings.transport, &self.phases)
            })
            .collect();
        let result = self.rounds();
        self.phases.begin(Phase::Over);
        for thread in threads {
            let _ = thread.join();
        }
        engine.shutdown();
        result
    }

    fn rounds(&mut self) -> Result<()> {
        let length = self.settings.duration / (2 * ROUNDS as u32);
        let mut before = None;
        for round in 0..ROUNDS {
            self.phase(Phase::Quiet(round), length)?;
            let before = match &before {
                Some(before) => before,
                None => {
                    let state = self.baseline()?;
                    println!("attack: before: {state}");
                    before.insert(state)
                }
            };
            let before = before.clone();
            self.phase(Phase::Attack(round), length)?;
            let after = self.settle(&before)?;
            println!("attack: after attack {}: {after}", round + 1);
        }
        self.compare()
    }

    /// The victim's state while no honest client works, when it no longer changes.
    fn baseline(&mut self) -> Result<State> {
        self.pause()?;
        let mut deadline = Deadline::after(PATIENCE);
        let mut state = self.victim.state()?;
        loop {
            // Connections that clients have closed are being released.
            thread::sleep(4 * LOOK);
            let next = self.victim.state()?;
            if next.has_settled(&state) && state.has_settled(&next) {
                return Ok(next);
            }
            ensure!(!deadline.is_over(), "the victim does not settle: {next}");
            state = next;
        }
    }

    /// Waits until nothing of the attack is left.
    fn settle(&mut self, before: &State) -> Result<State> {
        self.pause()?;
        let mut deadline = Deadline::after(PATIENCE);
        loop {
            let state = self.victim.state()?;
            if state.has_settled(before) {
                return Ok(state);
            }
            ensure!(
                !deadline.is_over(),
                "something of the attack is left.\n  before: {before}\n  now:    {state}"
            );
            thread::sleep(LOOK);
        }
    }

    /// Pauses the honest clients, and waits until all their operations have ended.
    fn pause(&mut self) -> Result<()> {
        self.phases.begin(Phase::Pause);
        let is_idle = self.phases.wait_idle(2 * PATIENCE);
        self.look()?;
        ensure!(is_idle, "an honest client hangs");
        Ok(())
    }

    fn phase(&mut self, phase: Phase, length: Duration) -> Result<()> {
        self.phases.begin(phase);
        let services = self.victim.services.clone();
        let arena = Arena {
            services: &services,
            transport: self.settings.transport,
            rates: &self.rates,
            end: Instant::now() + length,
            stopped: AtomicBool::new(false),
        };
        let victim = &mut self.victim;
        let (phases, started) = (&self.phases, self.started);
        let attackers = match phase {
            Phase::Attack(_) => &self.attackers[..],
            Phase::Quiet(_) | Phase::Pause | Phase::Over => &[],
        };
        thread::scope(|scope| {
            for attacker in attackers {
                scope.spawn(|| attacker.run(&arena));
            }
            let result = watch(&arena, phase, victim, phases, started);
            arena.stopped.store(true, Ordering::Relaxed);
            result
        })?;
        self.look()
    }

    fn look(&mut self) -> Result<()> {
        look(&mut self.victim, &self.phases)
    }

    /// Prints the honest clients' times, and fails if they are too long.
    fn compare(&mut self) -> Result<()> {
        println!(
            "attack: seed {}: the median of the 99th percentiles of {ROUNDS} phases, in ms",
            self.settings.seed
        );
        println!(
            "| {:<18} | {:>7} | {:>9} | {:>7} | {:>9} | {:>6} |",
            "operation", "count", "quiet", "count", "attacks", "ratio"
        );
        println!(
            "|{:-<20}|{:->8}:|{:->10}:|{:->8}:|{:->10}:|{:->7}:|",
            "", "", "", "", "", ""
        );
        let mut slow = Vec::new();
        for client in &self.clients {
            let (calm, quiet) = percentile(client, Phase::Quiet);
            let (count, attacks) = percentile(client, Phase::Attack);
            let ratio = attacks.as_secs_f64() / quiet.max(self.settings.floor).as_secs_f64();
            println!(
                "| {:<18} | {calm:>7} | {:>9.3} | {count:>7} | {:>9.3} | {ratio:>6.2} |",
                client.name(),
                quiet.as_secs_f64() * 1e3,
                attacks.as_secs_f64() * 1e3,
            );
            ensure!(calm > 0 && count > 0, "{} did nothing", client.name());
            if ratio >= f64::from(MOST) {
                slow.push(client.name());
            }
        }
        ensure!(
            slow.is_empty(),
            "attacks slow down by {MOST} times or more: {}",
            slow.join("; ")
        );
        Ok(())
    }
}

/// Says how far an attack is, until it is over or something has failed.
fn watch(
    arena: &Arena<'_>,
    phase: Phase,
    victim: &mut Victim,
    phases: &Phases,
    started: Instant,
) -> Result<()> {
    while !arena.is_over() {
        phases.wait(PROGRESS.min(arena.end.saturating_duration_since(Instant::now())));
        look(victim, phases)?;
        let state = victim.state()?;
        println!(
            "attack: {:.0} s, {phase:?}: {}; {} connections ended; {state}; {} lines logged",
            started.elapsed().as_secs_f64(),
            arena.rates,
            state.ended,
            victim.lines(),
        );
    }
    Ok(())
}

fn look(victim: &mut Victim, phases: &Phases) -> Result<()> {
    victim.look()?;
    let failures = phases.failures();
    if !failures.is_empty() {
        bail!(failures.join("; "));
    }
    Ok(())
}

/// The number of operations in all phases of a kind, and the median of the phases' 99th
/// percentiles: other programs of this machine spoil one phase, and not most of them.
fn percentile(client: &Honest, phase: impl Fn(usize) -> Phase) -> (usize, Duration) {
    let mut count = 0;
    let mut all: Vec<_> = (0..ROUNDS)
        .filter_map(|round| {
            let mut times = client.times(phase(round));
            times.sort_unstable();
            count += times.len();
            let at = (times.len() * 99).div_ceil(100);
            times.get(at.checked_sub(1)?).copied()
        })
        .collect();
    all.sort_unstable();
    (count, all.get(all.len() / 2).copied().unwrap_or_default())
}
