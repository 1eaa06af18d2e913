//! Runs the programs of a plan, one round after the other, and collects the results.

use std::{
    fmt,
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
    idle::Usage,
    instructions,
    measure::Measure,
    plan::{self, Pair},
    program::{Commands, Program, Run, last_json},
    report::Report,
    row::{Part, Row, Side},
    sweep,
    traffic::Reading,
    work::{Scope, Task},
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

/// The name of the file with the reports of all parts, in the results folder.
pub(crate) const REPORTS: &str = "bench.json";

/// Measures all parts of a task one after the other, and writes the reports to the results folder.
/// `here` is the results folder if the task runs on this machine. It is `None` in the lab, which
/// sets its own results folder.
pub(crate) fn perform(task: &Task, here: Option<&Path>) -> Result<()> {
    if task.parts == [Part::Hosts] && Lab::find()?.host != "a" {
        return agent::serve();
    }
    let mut reports = Vec::new();
    for part in &task.parts {
        let mut conductor = Conductor::new(*part, task, here)?;
        let measured = conductor.measure(task.scope, &task.only);
        conductor.server.quit()?;
        measured?;
        reports.push(conductor.report);
        // Write the file after each part, because a later part may fail.
        let file = conductor.results.join(REPORTS);
        fs::write(file, serde_json::to_string(&reports)?)?;
    }
    Ok(())
}

/// Runs clients on this host and their servers on this host or on the peer host. Collects the
/// results of one part.
#[derive(Debug)]
pub(crate) struct Conductor {
    pub(crate) part: Part,
    rounds: u32,
    address: IpAddr,
    device: Option<String>,
    pub(crate) report: Report,
    /// The time limit for a client.
    limit: Duration,
    /// The folder for files that remain after the run.
    results: PathBuf,
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
    fn new(part: Part, task: &Task, here: Option<&Path>) -> Result<Self> {
        let (mut server, mut place) = (Host::here(), String::new());
        let (address, device, results) = match here {
            Some(here) => (Ipv4Addr::LOCALHOST.into(), None, here.to_owned()),
            None if part == Part::Hosts => {
                let lab = Lab::find()?;
                server = Host::connect(lab.peer)?;
                let impair = network::impair(WIRE);
                server.shell(&impair)?;
                Host::here().shell(&impair)?;
                place = format!("two hosts, each of which sends through netem {WIRE}, ");
                (lab.peer, Some(lab.device), lab.results)
            }
            None => {
                let lab = Lab::find()?;
                (lab.addr, Some(lab.device), lab.results)
            }
        };
        let log = results.join(format!("bench-{part}.log"));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let kernel = kernel.trim().to_owned();
        let note = format!(
            "{part}: {place}on {}, processors: {}, Linux {kernel}",
            device.as_deref().unwrap_or("TCP only"),
            available_parallelism()?
        );
        Ok(Self {
            part,
            rounds: task.rounds,
            address,
            device,
            report: Report {
                kernel,
                notes: vec![note],
                ..Report::default()
            },
            limit: match part {
                Part::Counted => COUNTED_LIMIT,
                Part::Instructions => CALLGRIND_LIMIT,
                _ => CLIENT_LIMIT,
            },
            server,
            next_port: PORT_BEFORE_FIRST,
            began: Duration::ZERO,
            log: File::create(&log).with_context(|| format!("cannot write {log:?}"))?,
            results,
        })
    }

    fn measure(&mut self, scope: Scope, only: &[String]) -> Result<()> {
        let part = self.part;
        let _load = (part == Part::Loaded)
            .then(|| Load::start(LOAD))
            .transpose()?;
        let quick = scope == Scope::Quick;
        if part == Part::Instructions {
            if let Err(error) = instructions::prepare() {
                self.lacks(format!("the whole part: {error:#}"));
                return Ok(());
            }
            instructions::add_calls(self);
        }
        let mut pairs = match (scope, &self.device) {
            (Scope::Sweep, _) => Vec::new(),
            (Scope::Many, _) => plan::pairs("many", false)?,
            (Scope::Full | Scope::Quick | Scope::Hosts, _) => {
                plan::pairs(&part.to_string(), quick)?
            }
            (Scope::Polling, Some(_)) if part == Part::Free => {
                plan::pairs("polling free rdma", false)?
            }
            (Scope::Polling, _) => plan::pairs(&format!("polling {part}"), false)?,
        };
        plan::select(&mut pairs, only);
        let runs = plan::runs(&pairs).into_iter();
        let mut readings: Vec<(Run, Vec<Reading>)> = runs.map(|run| (run, Vec::new())).collect();
        let (rounds, runs) = (self.rounds, readings.len());
        for round in 1..=rounds {
            for (place, (run, readings)) in (1..).zip(&mut readings) {
                let what = format!("round {round} of {rounds}, {run}");
                self.say(&format!("{what} ({place} of {runs})"));
                readings.extend(self.reading(&what, run));
            }
        }
        for pair in &pairs {
            self.add_pair(&readings, pair);
        }
        let has_sweep = matches!(scope, Scope::Full | Scope::Quick | Scope::Sweep);
        if part == Part::Counted && has_sweep && only.is_empty() {
            sweep::add(self, scope, rounds);
        }
        Ok(())
    }

    /// Runs a program, and returns its reading. If a stock program fails, runs it again, up to
    /// [`THEIRS`] times in total. Returns `None` if all attempts have failed.
    fn reading(&mut self, what: &str, run: &Run) -> Option<Reading> {
        let attempts = match run.program {
            Program::Rdmsg(_) => OURS,
            _ => THEIRS,
        };
        self.attempt(what, attempts, |this| match run.measure {
            Measure::Connect => {
                this.difference(run, |this, run| this.work_of_connections(what, run))
            }
            Measure::SystemCalls => {
                this.difference(run, |this, run| this.calls_of_connections(what, run))
            }
            measure if measure.is_of_idle() => {
                this.difference(run, |this, run| this.usage_of_connections(what, run))
            }
            Measure::Loop => instructions::round_trip(this, run),
            _ => run.read(&this.client_of(what, run, |_| {})?),
        })
    }

    /// Measures the cost of additional connections. Calls `of` twice, to measure a run with one
    /// connection and a run with `run.count` more connections. Returns the difference between the
    /// two figures, divided as the measure requires.
    fn difference(
        &mut self,
        run: &Run,
        of: impl Fn(&mut Self, &Run) -> Result<f64>,
    ) -> Result<Reading> {
        let mut of = |count| of(self, &Run { count, ..*run });
        let (one, more) = (of(1)?, of(run.count + 1)?);
        let parts = match run.measure {
            // The processor share is the total for both ends of all additional connections.
            Measure::IdleWork => 1.0,
            // The other figures of idle connections are for one end of one connection.
            measure if measure.is_of_idle() => 2.0 * run.count as f64,
            _ => run.count as f64,
        };
        Ok(Reading::mean((more - one).max(0.0) / parts))
    }

    /// Measures this host's processor time in µs. The elapsed time would be longer, because a
    /// connection waits for timers of the kernel while it opens and closes.
    fn work_of_connections(&mut self, what: &str, run: &Run) -> Result<f64> {
        sleep(SETTLE);
        self.client_of(what, run, |_| {})?;
        Ok(work()?.saturating_sub(self.began).as_secs_f64() * 1e6)
    }

    /// Measures the total number of system calls of the client and the server.
    fn calls_of_connections(&mut self, what: &str, run: &Run) -> Result<f64> {
        let files = ["client", "server"].map(|side| format!("/tmp/bench-strace-{side}"));
        self.client_of(what, run, |commands| {
            let sides = [&mut commands.client, &mut commands.server];
            for (argv, file) in sides.into_iter().zip(&files) {
                argv.splice(..0, words(&format!("strace -f -q -c -o {file}")));
            }
        })?;
        let counts = files.iter().map(|file| calls(&fs::read_to_string(file)?));
        Ok(counts.sum::<Result<u64>>()? as f64)
    }

    /// Measures the usage of idle connections.
    fn usage_of_connections(&mut self, what: &str, run: &Run) -> Result<f64> {
        let output = self.client_of(what, run, |_| {})?;
        let usage: Usage = last_json(&output).context("the client printed no usage")?;
        Ok(usage.figure(run.measure))
    }

    fn add_pair(&mut self, readings: &[(Run, Vec<Reading>)], pair: &Pair) {
        let runs = [pair.ours, pair.theirs];
        let found = runs.map(|run| readings.iter().find(|(other, _)| *other == run));
        let [Some((_, ours)), Some((_, theirs))] = found else {
            return;
        };
        let whole = self.rounds as usize;
        if ours.len() < whole || theirs.len() < whole {
            return;
        }
        // In the parts `Free`, `Loaded` and `Hosts`, use the median, because another process can
        // interrupt a measurement by the clock. In the other parts, use the mean, because counted
        // times and instructions vary little. The part `OneProcessor` also uses the mean. For
        // READs, use the median in all parts, because a READ sometimes waits for a thread of the
        // kernel.
        let Run { measure, size, .. } = pair.ours;
        let by_clock = matches!(self.part, Part::Free | Part::Loaded | Part::Hosts);
        let has_median = |reading: &Reading| reading.median.is_some();
        let medians =
            (by_clock || measure == Measure::Read) && ours.iter().chain(theirs).all(has_median);
        let figure = |it: &Reading| it.median.filter(|_| medians).unwrap_or(it.mean);
        let side = |run: Run, readings: &[Reading]| Side {
            name: run.name(),
            figures: readings.iter().map(figure).collect(),
        };
        let row = Row {
            part: self.part,
            measure,
            size,
            ours: side(pair.ours, ours),
            theirs: Some(side(pair.theirs, theirs)),
            target: pair.target,
        };
        self.report.rows.push(row);
    }

    /// Calls `once` until it succeeds, up to `attempts` times. If the final attempt fails, adds the
    /// error to the missing measurements, and marks the report as broken if `attempts` is [`OURS`].
    /// The errors of earlier attempts become notes.
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
                    let note = format!("{what}: retried: {error:#}");
                    self.report.notes.push(note);
                }
                Err(error) => {
                    self.report.broken |= attempts == OURS;
                    self.lacks(format!("{what}: {error:#}"));
                    break;
                }
            }
        }
        None
    }

    /// Runs a server and then its client. `change` may modify both command lines. Returns the
    /// client's output.
    pub(crate) fn client_of(
        &mut self,
        what: &str,
        run: &Run,
        change: impl FnOnce(&mut Commands),
    ) -> Result<String> {
        self.next_port += 1;
        let device = self.device.as_deref().unwrap_or_default();
        let mut commands = run.commands(self.address, device, self.next_port)?;
        change(&mut commands);
        let start = Instant::now();
        self.server.start(&commands.server)?;
        if !self.server.listens(commands.listening)? {
            let server = self.server.finish(END_LIMIT)?;
            bail!("{} ended before it listened: {server}", commands.server[0]);
        }
        if run.measure == Measure::Connect {
            self.began = work()?;
        }
        // A client with idle connections can sleep for several seconds, so raise a limit that is
        // shorter than `CLIENT_LIMIT`.
        let limit = match run.measure.is_of_idle() {
            true => self.limit.max(CLIENT_LIMIT),
            false => self.limit,
        };
        let client = Process::start(&commands.client)?.finish(limit)?;
        // If the client has failed, kill the server, which would otherwise wait for the client.
        let limit = match client.succeeded() {
            true => END_LIMIT,
            false => Duration::ZERO,
        };
        let server = self.server.finish(limit)?;
        let (taken, output) = (start.elapsed().as_secs_f64(), client.output.trim_end());
        writeln!(self.log, "== {what} ({taken:.1} s)\n{output}")?;
        if !client.succeeded() {
            bail!("the client failed: {client}; its server: {server}");
        }
        Ok(client.output)
    }

    /// Returns the path of callgrind's output. The file remains after the run for other tools.
    pub(crate) fn profile(&self) -> PathBuf {
        self.results.join("bench-callgrind.out")
    }

    pub(crate) fn lacks(&mut self, what: impl fmt::Display) {
        let part = self.part;
        self.report.missing.push(format!("{part}: {what}"));
    }

    pub(crate) fn say(&self, what: &str) {
        eprintln!("bench: {}: {what}", self.part);
    }
}

/// Returns the total time since boot during which the processor was not idle.
pub(crate) fn work() -> Result<Duration> {
    let timers = fs::read_to_string("/proc/timer_list")?;
    let now = nanos(&timers, "now at ")?;
    let idle = nanos(&timers, ".idle_sleeptime :")?;
    Ok(Duration::from_nanos(now.saturating_sub(idle)))
}

/// Returns the number of system calls in the summary that strace writes. In the summary's final
/// line, the number of calls is in the fourth column. The first three columns contain times: in
/// percent, in seconds, and in microseconds per call.
fn calls(summary: &str) -> Result<u64> {
    let total = summary.lines().rfind(|line| line.ends_with(" total"));
    let number = total.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    number.context("strace wrote no total")
}

/// Returns the number that follows the first `word` in /proc/timer_list. The host must have only
/// one processor, because the file repeats some words for each processor.
fn nanos(timers: &str, word: &str) -> Result<u64> {
    let rest = timers.split_once(word).map(|(_, rest)| rest);
    let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("/proc/timer_list does not contain {word:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_strace_has_the_number_of_calls() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
                       ------ ----------- ----------- --------- --------- ---------------\n \
                       40.00    0.000012           1        12         2 read\n\
                       ------ ----------- ----------- --------- --------- ---------------\n\
                       100.00    0.000030           1        34         2 total\n";
        assert_eq!(calls(summary).unwrap(), 34);
        assert!(calls("").is_err());
    }

    #[test]
    fn kernel_tells_nanoseconds() {
        let timers = "Timer List Version: v0.9\nnow at 2739730090 nsecs\n\n\
                      cpu: 0\n  .nohz_mode      : 2\n  .idle_sleeptime : 197603205 nsecs\n";
        assert_eq!(nanos(timers, "now at ").unwrap(), 2_739_730_090);
        assert_eq!(nanos(timers, ".idle_sleeptime :").unwrap(), 197_603_205);
        assert!(nanos(timers, "idle_calls").is_err());
    }
}
