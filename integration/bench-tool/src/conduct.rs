//! Runs plans round by round, and collects the results.

use std::{
    fmt,
    fs::{self, File},
    io::Write,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use toolbox::{Host, Lab, Process};

use crate::{
    measure::Measure,
    plan::{Pair, Plan},
    program::{Commands, Program, Run},
    row::{Part, Row, Side, Target},
    traffic::Reading,
    work::Task,
};

/// The first server's port; each has one of its own.
const FIRST_PORT: u16 = 20_000;

/// How long a client may run. A second is some billion instructions where they are counted.
const CLIENT_LIMIT: Duration = Duration::from_secs(60);
const COUNTED_LIMIT: Duration = Duration::from_secs(15);

/// How long a server may take to end after its client.
const END_LIMIT: Duration = Duration::from_secs(10);

/// How often ours is tried, and a stock program, of which now and then one crashes.
pub(crate) const OURS: u32 = 1;
pub(crate) const THEIRS: u32 = 3;

/// The results of a part.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    /// Missing measurements, with the reasons.
    pub(crate) missing: Vec<String>,
    /// Remarks for readers of the table.
    pub(crate) notes: Vec<String>,
    /// The host's kernel.
    pub(crate) kernel: String,
    /// Whether a program of ours failed.
    pub(crate) broken: bool,
}

/// Runs servers and clients on this host.
#[derive(Debug)]
pub(crate) struct Conductor {
    pub(crate) task: Task,
    pub(crate) address: IpAddr,
    pub(crate) device: Option<String>,
    pub(crate) outcome: Outcome,
    /// How long a client may run.
    pub(crate) limit: Duration,
    /// The folder for files that remain.
    results: PathBuf,
    server: Host,
    next_port: u16,
    /// The output of each run.
    log: File,
}

impl Conductor {
    /// In the lab, or without it and with the results in the folder `here`.
    pub(crate) fn new(task: Task, here: Option<&Path>) -> Result<Self> {
        let (address, device, results) = match here {
            Some(here) => (Ipv4Addr::LOCALHOST.into(), None, here.to_owned()),
            None => {
                let lab = Lab::find()?;
                (lab.addr, Some(lab.device), lab.results)
            }
        };
        let log = results.join(format!("bench-{}.log", task.part));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let kernel = kernel.trim().to_owned();
        let place = format!(
            "{}: on {}, processors: {}, Linux {kernel}",
            task.part,
            device.as_deref().unwrap_or("TCP alone"),
            available_parallelism()?
        );
        Ok(Self {
            task,
            address,
            device,
            outcome: Outcome {
                kernel,
                notes: vec![place],
                ..Outcome::default()
            },
            limit: match task.part {
                Part::Counted => COUNTED_LIMIT,
                _ => CLIENT_LIMIT,
            },
            server: Host::here(),
            next_port: FIRST_PORT,
            log: File::create(&log).with_context(|| format!("cannot write {log:?}"))?,
            results,
        })
    }

    pub(crate) fn run_plan(&mut self, plan: &Plan) {
        let mut readings: Vec<(Run, Vec<Reading>)> = Vec::new();
        readings.extend(plan.runs().into_iter().map(|run| (run, Vec::new())));
        let (rounds, runs) = (self.task.rounds, readings.len());
        for round in 1..=rounds {
            for (place, (run, readings)) in (1..).zip(&mut readings) {
                let what = format!("round {round} of {rounds}, {run}");
                self.say(&format!("{what} ({place} of {runs})"));
                readings.extend(self.reading(&what, run));
            }
        }
        for pair in &plan.0 {
            self.add_pair(&readings, pair);
        }
    }

    /// Runs a program once.
    fn reading(&mut self, what: &str, run: &Run) -> Option<Reading> {
        let attempts = match run.program {
            Program::Rdmsg(_) => OURS,
            _ => THEIRS,
        };
        self.attempt(what, attempts, |this| {
            let commands = this.commands(run)?;
            run.read(&this.client_of(what, &commands, this.limit)?)
        })
    }

    fn add_pair(&mut self, readings: &[(Run, Vec<Reading>)], pair: &Pair) {
        let runs = [pair.ours, pair.theirs];
        let found = runs.map(|run| readings.iter().find(|(other, _)| *other == run));
        let [Some((_, ours)), Some((_, theirs))] = found else {
            return;
        };
        let whole = self.task.rounds as usize;
        if ours.len() < whole || theirs.len() < whole {
            return;
        }
        // Counted, and on one idle processor, every instruction matters, so the mean is taken. By
        // the clock the median is, because another process may take a time slice in between. A READ
        // sometimes waits for a thread of the kernel.
        let Run { measure, size, .. } = pair.ours;
        let by_clock = matches!(self.task.part, Part::Free | Part::Loaded);
        let medians = (by_clock || measure == Measure::Read)
            && ours
                .iter()
                .chain(theirs)
                .all(|reading| reading.median.is_some());
        let side = |run: Run, readings: &[Reading]| Side {
            name: run.name(),
            figures: readings
                .iter()
                .map(|reading| reading.median.filter(|_| medians).unwrap_or(reading.mean))
                .collect(),
        };
        let (ours, theirs) = (side(pair.ours, ours), side(pair.theirs, theirs));
        self.add_row(measure, size, ours, Some(theirs), pair.target);
    }

    pub(crate) fn add_row(
        &mut self,
        measure: Measure,
        size: usize,
        ours: Side,
        theirs: Option<Side>,
        target: Target,
    ) {
        self.outcome.rows.push(Row {
            part: self.task.part,
            measure,
            size,
            ours,
            theirs,
            target,
        });
    }

    /// Tries something up to `attempts` times. Adds failures to the notes, and the last one to the
    /// missing measurements.
    pub(crate) fn attempt<T>(
        &mut self,
        what: &str,
        attempts: u32,
        mut once: impl FnMut(&mut Self) -> Result<T>,
    ) -> Option<T> {
        for attempt in 1..=attempts {
            match once(self) {
                Ok(value) => return Some(value),
                Err(error) if attempt < attempts => {
                    let note = format!("{what}: tried again: {error:#}");
                    self.outcome.notes.push(note);
                }
                Err(error) => {
                    self.outcome.broken |= attempts == OURS;
                    self.lacks(format!("{what}: {error:#}"));
                    break;
                }
            }
        }
        None
    }

    /// Runs a client against its server. Returns the client's output.
    pub(crate) fn client_of(
        &mut self,
        what: &str,
        commands: &Commands,
        limit: Duration,
    ) -> Result<String> {
        let start = Instant::now();
        self.server.start(&commands.server)?;
        if !self.server.listens(commands.listening)? {
            let server = self.server.finish(END_LIMIT)?;
            bail!("{} ended at once: {server}", commands.server[0]);
        }
        let client = Process::start(&commands.client)?.finish(limit)?;
        // A server without its client does not end by itself.
        let limit = if client.succeeded() {
            END_LIMIT
        } else {
            Duration::ZERO
        };
        let server = self.server.finish(limit)?;
        let taken = start.elapsed().as_secs_f64();
        writeln!(
            self.log,
            "== {what} ({taken:.1} s)\n{}",
            client.output.trim_end()
        )?;
        if !client.succeeded() {
            bail!("the client ended: {client}; its server: {server}");
        }
        Ok(client.output)
    }

    pub(crate) fn commands(&mut self, run: &Run) -> Result<Commands> {
        let port = self.port();
        let device = self.device.as_deref().unwrap_or_default();
        run.commands(self.address, device, port)
    }

    pub(crate) fn port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }

    /// The output of callgrind, which remains for other tools.
    pub(crate) fn profile(&self) -> PathBuf {
        self.results.join("bench-callgrind.out")
    }

    pub(crate) fn lacks(&mut self, what: impl fmt::Display) {
        let part = self.task.part;
        self.outcome.missing.push(format!("{part}: {what}"));
    }

    pub(crate) fn say(&self, what: &str) {
        eprintln!("bench: {}: {what}", self.task.part);
    }
}
