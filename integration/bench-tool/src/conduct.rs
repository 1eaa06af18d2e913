//! Runs the programs of a plan, one round after the other, and collects the results.

use std::{
    fs::{self, File},
    io::Write,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    thread::{available_parallelism, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use toolbox::{Host, Lab, Load, Process, agent, network, words};

use crate::{
    instructions,
    kernel::{calls, work},
    manner::Library,
    measure::Measure,
    plan::{self, Pair, Task},
    program::{Commands, Program, Run},
    report::Report,
    row::{Part, Row, Side},
    sweep::Sweep,
};

/// The first server listens on the port above this one. Each further server uses the next higher
/// port.
const PORT_BEFORE_FIRST: u16 = 20_000;

/// The time limits for a client: in the parts that measure by the clock, in a guest whose clock
/// counts instructions, and under callgrind. A clock that counts instructions advances by one
/// second per billion instructions.
const CLIENT_LIMIT: Duration = Duration::from_secs(60);
const COUNTED_LIMIT: Duration = Duration::from_secs(15);
const CALLGRIND_LIMIT: Duration = Duration::from_secs(600);

/// The time limit for a server to end after its client has ended.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The maximum number of attempts for one of our programs and for a stock program. Stock programs
/// sometimes crash.
pub(crate) const OURS: u32 = 1;
pub(crate) const THEIRS: u32 = 3;

/// The pause before a run that measures the opening and closing of connections. During this pause,
/// the kernel finishes its work for the connections of the previous run.
const SETTLE: Duration = Duration::from_millis(300);

/// The `netem` arguments of each host in the part with two hosts. The product of the rate and the
/// round trip time is 12.5 kB, or 80 short messages. A network with 100 Gbit/s and a round trip
/// time of 1 µs has the same product.
const WIRE: &str = "rate 10mbit delay 5ms";

/// The number of busy processes per processor in the part with load.
const LOAD: usize = 4;

/// The numbers of round trips in two runs under callgrind. The difference between the instruction
/// counts of the two runs excludes the instructions before the first round trip.
const LESS: u64 = 100;
const MORE: u64 = 300;

/// The name of the file with the report, in the results folder.
pub(crate) const REPORT: &str = "bench.json";

/// Performs tasks in the lab. The second host only runs the agent that starts the servers.
pub(crate) fn perform_in_lab(tasks: &[Task]) -> Result<()> {
    let lab = Lab::find()?;
    let is_conductor = lab.host == "a" || tasks.iter().all(|task| task.part != Part::Hosts);
    match is_conductor {
        true => perform(tasks, &lab.results, Some(&lab)),
        false => agent::serve(),
    }
}

/// Performs tasks one after the other, and writes the report to the folder `results`. `lab` is
/// `None` on a machine without a device.
pub(crate) fn perform(tasks: &[Task], results: &Path, lab: Option<&Lab>) -> Result<()> {
    let mut report = Report::default();
    for task in tasks {
        let mut conductor = Conductor::new(task, results, lab)?;
        let measured = conductor.measure(task);
        conductor.server.quit()?;
        measured?;
        report.add(conductor.report);
        // Write the file after each task, because a later task may fail.
        fs::write(results.join(REPORT), serde_json::to_string(&report)?)?;
    }
    Ok(())
}

/// Runs clients on this host and their servers on this host or on the peer host. Collects the
/// results of one task.
#[derive(Debug)]
pub(crate) struct Conductor {
    pub(crate) part: Part,
    /// The current measurement, for messages and for the log.
    what: String,
    address: IpAddr,
    /// The name of the RDMA device, which is empty if there is none.
    device: String,
    pub(crate) report: Report,
    /// The path of callgrind's output. The file remains after the run for other tools.
    pub(crate) profile: PathBuf,
    server: Host,
    next_port: u16,
    /// The value of [`work`] at the start of the client in the last [`Measure::Connect`] run. The
    /// client starts when the server listens. The wait until then is not measured, because its
    /// duration varies.
    began: Duration,
    /// The log file, to which the output of each run is written.
    log: File,
}

impl Conductor {
    fn new(task: &Task, results: &Path, lab: Option<&Lab>) -> Result<Self> {
        let part = task.part;
        let (mut server, mut place) = (Host::here(), String::new());
        let mut address = lab.map_or_else(|| Ipv4Addr::LOCALHOST.into(), |lab| lab.addr);
        if let Some(lab) = lab.filter(|_| part == Part::Hosts) {
            address = lab.peer;
            server = Host::connect(address)?;
            let impair = network::impair(WIRE);
            server.shell(&impair)?;
            Host::here().shell(&impair)?;
            place = format!("two hosts, each of which sends through netem {WIRE}, ");
        }
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let kernel = kernel.trim().to_owned();
        let device = lab.map(|lab| lab.device.clone()).unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg")?;
        let note = format!(
            "{part}: {place}on {}, processors: {}, load average: {}, Linux {kernel}",
            if lab.is_some() { &device } else { "TCP only" },
            available_parallelism()?,
            load.split(' ').next().unwrap_or_default()
        );
        let log = results.join(format!("bench-{part}.log"));
        Ok(Self {
            part,
            what: String::new(),
            address,
            device,
            report: Report {
                kernel,
                notes: vec![note],
                ..Report::default()
            },
            profile: results.join("bench-callgrind.out"),
            server,
            next_port: PORT_BEFORE_FIRST,
            began: Duration::ZERO,
            log: File::create(&log).with_context(|| format!("cannot write {log:?}"))?,
        })
    }

    fn measure(&mut self, task: &Task) -> Result<()> {
        let _load = (self.part == Part::Loaded)
            .then(|| Load::start(LOAD))
            .transpose()?;
        if self.part == Part::Instructions {
            if let Err(error) = instructions::prepare() {
                let missing = format!("{}: the whole part: {error:#}", self.part);
                self.report.missing.push(missing);
                return Ok(());
            }
            instructions::add_calls(self);
        }
        let pairs = task.pairs()?;
        let runs = plan::runs(&pairs).into_iter();
        let mut sides: Vec<(Run, Side)> = runs.map(|run| (run, Side::new(run.name()))).collect();
        let (rounds, runs) = (task.rounds, sides.len());
        for round in 1..=rounds {
            for (place, (run, side)) in (1..).zip(&mut sides) {
                self.begin(format!(
                    "round {round} of {rounds}, {run} ({place} of {runs})"
                ));
                side.figures.extend(self.figure(run));
            }
        }
        // Add a row if all rounds of both programs were measured.
        let side = |run: &Run| {
            let (_, side) = sides.iter().find(|(other, _)| other == run)?;
            (side.figures.len() == rounds as usize).then(|| side.clone())
        };
        let part = self.part;
        let row = |pair: &Pair| {
            let theirs = match &pair.theirs {
                Some(run) => Some(side(run)?),
                None => None,
            };
            Some(Row {
                part,
                measure: pair.ours.measure,
                size: pair.ours.size,
                ours: side(&pair.ours)?,
                theirs,
                target: pair.target,
            })
        };
        self.report.rows.extend(pairs.iter().filter_map(row));
        Ok(())
    }

    /// Runs a program, and returns its figure. If a program other than rdmsg fails, runs it again,
    /// up to [`THEIRS`] times in total. Returns `None` if all attempts have failed.
    fn figure(&mut self, run: &Run) -> Option<f64> {
        let attempts = match run.program {
            Program::Rdmsg(manner) if manner.library == Library::Rdmsg => OURS,
            _ => THEIRS,
        };
        self.attempt(attempts, |this| match run.measure {
            Measure::Step => {
                let readings = run.read(&this.client_of(run, |_| {})?)?;
                let sweep = Sweep::new(run.name(), &readings);
                let worst = sweep.worst();
                this.report.sweeps.push(sweep);
                Ok(worst)
            }
            measure if measure.is_of_connections() => this.difference(run, 1, run.count + 1),
            Measure::Loop => this.difference(run, LESS, MORE),
            _ => this.reading(run),
        })
    }

    /// Runs a program, and returns the figure that its client has printed. In the parts `Free`,
    /// `Loaded` and `Hosts`, this is the median, because another process can interrupt a
    /// measurement by the clock. In the other parts, it is the mean, because counted times and
    /// instructions vary little. The part `OneProcessor` also uses the mean. For READs, it is the
    /// median in all parts, because a READ sometimes waits for a thread of the kernel. If the
    /// program determines only the mean, it is the mean.
    fn reading(&mut self, run: &Run) -> Result<f64> {
        let readings = run.read(&self.client_of(run, |_| {})?)?;
        let reading = readings.first().context("the client printed no figures")?;
        let by_clock = matches!(self.part, Part::Free | Part::Loaded | Part::Hosts);
        let has_median = by_clock || run.measure == Measure::Read;
        Ok(reading
            .median
            .filter(|_| has_median)
            .unwrap_or(reading.mean))
    }

    /// Measures the cost of additional connections or messages, in a run with `less` and in a run
    /// with `more` of them. Returns the difference between the two figures, divided as the measure
    /// requires.
    fn difference(&mut self, run: &Run, less: u64, more: u64) -> Result<f64> {
        let mut of = |count| {
            let run = &Run { count, ..*run };
            match run.measure {
                Measure::Connect => self.work_of_connections(run),
                Measure::SystemCalls => self.calls_of_connections(run),
                Measure::Loop => instructions::executed(self, run),
                _ => self.reading(run),
            }
        };
        let of_less = of(less)?;
        let difference = (of(more)? - of_less).max(0.0);
        let count = (more - less) as f64;
        let parts = match (run.measure, run.program) {
            // The processor share is the total for both ends of all additional connections.
            (Measure::IdleWork, _) => 1.0,
            // The other figures of idle connections are for one end of one connection.
            (measure, _) if measure.is_of_idle() => 2.0 * count,
            // Our client also executes unmeasured round trips at the start: a tenth of the measured
            // number.
            (Measure::Loop, Program::Rdmsg(_)) => 1.1 * count,
            _ => count,
        };
        Ok(difference / parts)
    }

    /// Measures this host's processor time in µs. The elapsed time would be longer, because a
    /// connection waits for timers of the kernel while it opens and closes.
    fn work_of_connections(&mut self, run: &Run) -> Result<f64> {
        sleep(SETTLE);
        self.client_of(run, |_| {})?;
        Ok(work()?.saturating_sub(self.began).as_secs_f64() * 1e6)
    }

    /// Measures the total number of system calls of the client and the server.
    fn calls_of_connections(&mut self, run: &Run) -> Result<f64> {
        let files = ["client", "server"].map(|side| format!("/tmp/bench-strace-{side}"));
        self.client_of(run, |commands| {
            let sides = [&mut commands.client, &mut commands.server];
            for (argv, file) in sides.into_iter().zip(&files) {
                argv.splice(..0, words(&format!("strace -f -q -c -o {file}")));
            }
        })?;
        let counts = files.iter().map(|file| calls(&fs::read_to_string(file)?));
        Ok(counts.sum::<Result<u64>>()? as f64)
    }

    /// Calls `once` until it succeeds, up to `attempts` times. If the final attempt fails, adds the
    /// error to the missing measurements, and marks the report as broken if `attempts` is [`OURS`].
    /// The errors of earlier attempts become notes.
    pub(crate) fn attempt<T>(
        &mut self,
        attempts: u32,
        mut once: impl FnMut(&mut Self) -> Result<T>,
    ) -> Option<T> {
        for left in (0..attempts).rev() {
            match once(self) {
                Ok(value) => return Some(value),
                Err(error) if left > 0 => {
                    let note = format!("{}: retried: {error:#}", self.what);
                    self.report.notes.push(note);
                }
                Err(error) => {
                    self.report.broken |= attempts == OURS;
                    let missing = format!("{}: {}: {error:#}", self.part, self.what);
                    self.report.missing.push(missing);
                }
            }
        }
        None
    }

    /// Runs a server and then its client. `change` may modify both command lines. Returns the
    /// client's output.
    pub(crate) fn client_of(
        &mut self,
        run: &Run,
        change: impl FnOnce(&mut Commands),
    ) -> Result<String> {
        self.next_port += 1;
        let mut commands = run.commands(self.address, &self.device, self.next_port)?;
        change(&mut commands);
        if self.part == Part::OneProcessor {
            // Use the last processor, because the first one handles most interrupts.
            let last = available_parallelism()?.get() - 1;
            for argv in [&mut commands.client, &mut commands.server] {
                argv.splice(..0, words(&format!("taskset -c {last}")));
            }
        }
        let start = Instant::now();
        self.server.start(&commands.server)?;
        if !self.server.listens(commands.listening)? {
            let server = self.server.finish(END_LIMIT)?;
            bail!("{} ended before it listened: {server}", commands.server[0]);
        }
        if run.measure == Measure::Connect {
            self.began = work()?;
        }
        let limit = match self.part {
            Part::Instructions => CALLGRIND_LIMIT,
            // A client with idle connections can sleep for several seconds.
            Part::Counted if !run.measure.is_of_idle() => COUNTED_LIMIT,
            _ => CLIENT_LIMIT,
        };
        let client = Process::start(&commands.client)?.finish(limit)?;
        // If the client has failed, kill the server, which would otherwise wait for the client.
        let limit = match client.succeeded() {
            true => END_LIMIT,
            false => Duration::ZERO,
        };
        let server = self.server.finish(limit)?;
        let (taken, output) = (start.elapsed().as_secs_f64(), client.output.trim_end());
        writeln!(self.log, "== {} ({taken:.1} s)\n{output}", self.what)?;
        if !client.succeeded() {
            bail!("the client failed: {client}; its server: {server}");
        }
        Ok(client.output)
    }

    /// Prints the name of the measurement that begins.
    pub(crate) fn begin(&mut self, what: String) {
        eprintln!("bench: {}: {what}", self.part);
        self.what = what;
    }
}
