//! What is done in the lab: plans are run round by round, and what they came to is written down.

use std::{
    error, fmt,
    fs::{self, File},
    io::Write,
    net::IpAddr,
    path::PathBuf,
    thread::available_parallelism,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use toolbox::{Ended, Load, Process, agent::Host};

use crate::{
    connections, instructions,
    measure::Measure,
    part::Part,
    plan::{Pair, Plan},
    program::{Commands, Program, Run},
    reading::Reading,
    row::{Row, Side},
    target::Target,
};

/// The first server's port; each has one of its own.
const FIRST_PORT: u16 = 20_000;

/// How long a client may run. A second is some billion instructions where they are counted.
const CLIENT_LIMIT: Duration = Duration::from_secs(60);
const COUNTED_LIMIT: Duration = Duration::from_secs(15);

/// How long a server may take to end after its client.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The number of other processes for each processor, where there is other load.
const LOAD: usize = 4;

/// How often ours is tried, and a stock program, of which now and then one crashes.
pub(crate) const OURS: u32 = 1;
pub(crate) const THEIRS: u32 = 3;

/// What a part came to.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    /// What was not measured, and why.
    pub(crate) missing: Vec<String>,
    /// What the reader of the table should know.
    pub(crate) notes: Vec<String>,
    /// The device and its host.
    pub(crate) place: String,
    /// That host's kernel.
    pub(crate) kernel: String,
    /// Whether something of ours was not measured.
    pub(crate) broken: bool,
}

/// What to do in the lab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) part: Part,
    pub(crate) hosts: u8,
    pub(crate) quick: bool,
    /// Only how the default configuration waits, beside the other ways.
    pub(crate) polling: bool,
    pub(crate) rounds: u32,
}

/// Where programs run.
#[derive(Debug)]
pub(crate) struct Site {
    /// Of the servers.
    pub(crate) address: IpAddr,
    pub(crate) device: Option<String>,
    /// A folder for what is to remain.
    pub(crate) results: PathBuf,
}

impl Task {
    /// Where in the results' folder its outcome is.
    pub(crate) fn file(&self) -> String {
        format!("bench-{}-{}.json", self.part, self.hosts)
    }
}

/// Runs servers on one host of the lab and clients on this one.
#[derive(Debug)]
pub(crate) struct Conductor {
    pub(crate) task: Task,
    /// Where the servers are.
    agent: Host,
    pub(crate) address: IpAddr,
    device: Option<String>,
    next_port: u16,
    outcome: Outcome,
    /// Programs that failed for good, which are not tried at other sizes.
    failed: Vec<(Program, Measure)>,
    /// How long a client may run.
    pub(crate) limit: Duration,
    /// What each run printed.
    log: File,
    results: PathBuf,
}

/// A client that was killed after its time, so there is no use in another try.
#[derive(Debug)]
struct TookTooLong;

impl error::Error for TookTooLong {}

impl fmt::Display for TookTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it came to no end")
    }
}

impl Conductor {
    /// Does one thing after the other, and writes the outcomes to the results' folder.
    pub(crate) fn perform(site: &Site, tasks: &[Task]) -> Result<()> {
        let mut agent = Host::connect(site.address)?;
        for task in tasks {
            let log = site.results.join(format!("bench-{}.log", task.part));
            let mut conductor = Self {
                task: *task,
                agent,
                address: site.address,
                device: site.device.clone(),
                next_port: FIRST_PORT,
                outcome: Outcome::default(),
                failed: Vec::new(),
                limit: match task.part {
                    Part::Counted => COUNTED_LIMIT,
                    Part::Instructions | Part::Clock | Part::OneProcessor | Part::Loaded => {
                        CLIENT_LIMIT
                    }
                },
                results: site.results.clone(),
                log: File::create(&log).with_context(|| format!("cannot write {log:?}"))?,
            };
            let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
            let processors = available_parallelism()?;
            kernel.trim().clone_into(&mut conductor.outcome.kernel);
            let device = site.device.as_deref().unwrap_or("TCP alone");
            conductor.outcome.place = format!("{device}, processors: {processors}");
            conductor.measure()?;
            let text = serde_json::to_string(&conductor.outcome)?;
            fs::write(site.results.join(task.file()), text)?;
            agent = conductor.agent;
        }
        // The other host is not to wait for more.
        agent.quit()
    }

    fn measure(&mut self) -> Result<()> {
        let Task {
            part,
            hosts,
            quick,
            polling,
            ..
        } = self.task;
        if polling {
            let load = (part == Part::Loaded).then(|| Load::start(LOAD));
            let load = load.transpose()?;
            self.run_plan(&Plan::polling(part, self.device.is_some()));
            if let Some(load) = load {
                let note = format!("beside {} other processes", load.processes());
                self.outcome.notes.push(format!("{part}: {note}"));
            }
            return Ok(());
        }
        match part {
            Part::Counted => {
                self.run_plan(&Plan::counted(quick));
                connections::open_and_close(self);
            }
            Part::Clock => {
                self.run_plan(&Plan::clock(quick, hosts));
                if !quick {
                    connections::stay_idle(self);
                }
            }
            Part::Instructions => instructions::measure(self, quick)?,
            Part::OneProcessor | Part::Loaded => {}
        }
        Ok(())
    }

    fn run_plan(&mut self, plan: &Plan) {
        let missing = plan.missing.iter().map(|what| (*what).to_owned());
        self.outcome.missing.extend(missing);
        let mut readings: Vec<Vec<Reading>> = vec![Vec::new(); plan.runs.len()];
        for round in 1..=self.task.rounds {
            for (place, run) in plan.runs.iter().enumerate() {
                let what = format!("round {round} of {}, {run}", self.task.rounds);
                self.say(&format!("{what} ({} of {})", place + 1, plan.runs.len()));
                readings[place].extend(self.reading(&what, run));
            }
        }
        for pair in &plan.pairs {
            self.add_pair(plan, &readings, pair);
        }
    }

    /// Runs a program once, or finds that there is no use in it.
    fn reading(&mut self, what: &str, run: &Run) -> Option<Reading> {
        let kind = (run.program, run.measure);
        if self.failed.contains(&kind) {
            return None;
        }
        if !run.is_installed() {
            self.failed.push(kind);
            let line = format!("{}, {}: it is not installed", run.name(), run.measure);
            self.outcome.missing.push(line);
            return None;
        }
        let attempts = match run.program {
            Program::Rdmsg(_) => OURS,
            _ => THEIRS,
        };
        let reading = self.attempt(what, attempts, |this| {
            let port = this.port();
            let commands = this.commands(run, port)?;
            run.read(&this.client_of(what, &commands, this.limit)?)
        });
        if reading.is_none() {
            self.failed.push(kind);
        }
        reading
    }

    fn add_pair(&mut self, plan: &Plan, readings: &[Vec<Reading>], pair: &Pair) {
        let (ours, theirs) = (&readings[pair.ours], &readings[pair.theirs]);
        let whole = |readings: &[Reading]| readings.len() == self.task.rounds as usize;
        if !whole(ours) || !whole(theirs) {
            return;
        }
        // Counted, and on one processor that nobody else uses, every instruction matters; by the
        // clock, not what disturbed a few, such as a time slice of another process. A READ now and
        // then waits for the turn of a thread of the kernel.
        let run = &plan.runs[pair.ours];
        let medians = match self.task.part {
            Part::Clock | Part::Loaded => true,
            Part::Counted | Part::Instructions | Part::OneProcessor => run.measure == Measure::Read,
        };
        let medians = medians
            && [ours, theirs]
                .iter()
                .all(|side| side.iter().all(|reading| reading.median.is_some()));
        let side = |place: usize| Side {
            name: plan.runs[place].name(),
            figures: readings[place]
                .iter()
                .map(|reading| reading.median.filter(|_| medians).unwrap_or(reading.mean))
                .collect(),
        };
        let (ours, theirs) = (side(pair.ours), Some(side(pair.theirs)));
        self.add_row(run.measure, run.size, ours, theirs, pair.target);
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
            hosts: self.task.hosts,
            measure,
            size,
            ours,
            theirs,
            target,
        });
    }

    /// Tries something; what fails is noted, and in the end that it is missing.
    pub(crate) fn attempt<T>(
        &mut self,
        what: &str,
        attempts: u32,
        mut once: impl FnMut(&mut Self) -> Result<T>,
    ) -> Option<T> {
        for attempt in 1..=attempts {
            match once(self) {
                Ok(value) => return Some(value),
                Err(error) if attempt < attempts && !error.is::<TookTooLong>() => {
                    let note = format!("{what}: tried again: {error:#}");
                    self.outcome.notes.push(note);
                }
                Err(error) => {
                    self.outcome.broken |= attempts == OURS;
                    self.outcome.missing.push(format!("{what}: {error:#}"));
                    break;
                }
            }
        }
        None
    }

    /// Runs a client against its server, and returns what it printed.
    pub(crate) fn client_of(
        &mut self,
        what: &str,
        commands: &Commands,
        limit: Duration,
    ) -> Result<String> {
        let start = Instant::now();
        self.agent.start(&commands.server)?;
        if !self.agent.listens(commands.listening)? {
            let server = self.agent.finish(END_LIMIT)?;
            bail!("{} ended at once: {server}", commands.server[0]);
        }
        let client = Process::start(&commands.client)?.finish(limit)?;
        // One whose client failed waits for it in vain.
        let limit = if client.succeeded() && commands.ends {
            END_LIMIT
        } else {
            Duration::ZERO
        };
        let server = self.agent.finish(limit)?;
        let Ended { output, .. } = &client;
        let taken = start.elapsed().as_secs_f64();
        let output = output.trim_end();
        writeln!(self.log, "== {what} ({taken:.1} s)\n{output}")?;
        if client.status.is_none() {
            return Err(TookTooLong.into());
        }
        if !client.succeeded() {
            bail!("the client ended: {client}; its server: {server}");
        }
        Ok(client.output)
    }

    pub(crate) fn commands(&self, run: &Run, port: u16) -> Result<Commands> {
        let device = self.device.as_deref().unwrap_or_default();
        run.commands(self.address, device, port)
    }

    pub(crate) fn port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port += 1;
        port
    }

    /// Where callgrind writes, for other tools to read as well.
    pub(crate) fn profile(&self) -> PathBuf {
        self.results.join("bench-callgrind.out")
    }

    pub(crate) fn lacks(&mut self, what: impl Into<String>) {
        self.outcome.missing.push(what.into());
    }

    pub(crate) fn say(&self, what: &str) {
        eprintln!("bench: {}: {what}", self.task.part);
    }
}
