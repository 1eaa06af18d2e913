//! The conductor on host a. It runs scenarios on both hosts, and checks the records of both sides.

mod strike;

use std::{
    env, mem,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use toolbox::{Deadline, Ended, Lab, Line, TIME_LIMIT, agent, retry, slowness, words};

use crate::{
    RETURNING_MEMORY,
    health::Health,
    judge::{Evidence, judge, summary},
    network::{self, SECOND_ADDRESS},
    record::Record,
    scenario::{Fault, Scenario},
    worker::Report,
};

/// The tolerance that is added to the configured time limits.
const SLACK: Duration = Duration::from_secs(5);

/// The time limit for a hung worker to end, and for the kernel to free the objects of a process.
const CLEANUP_LIMIT: Duration = Duration::from_secs(10);

/// The interval between two progress lines of a long scenario.
const PROGRESS: Duration = Duration::from_secs(10);

/// The maximum number of problems and log lines that are printed per scenario if RUST_LOG is not
/// set. With many connections, most problems are similar.
const MOST_PROBLEMS: usize = 30;

/// A host, with its agent and the output of its worker.
#[derive(Debug)]
pub(crate) struct Host {
    name: &'static str,
    pub(crate) agent: agent::Host,
    /// The objects on the device before the scenario, in the format of `rdma resource show`.
    objects: String,
    pub(crate) notes: Notes,
}

/// All output of a worker.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    records: Vec<Record>,
    problems: Vec<String>,
    /// The addresses on which the server listens.
    pub(crate) listens: Vec<SocketAddr>,
    /// The number of times that the worker has reported [`Report::Flowing`].
    flowing: u32,
    /// The resource counts that the victim reported last.
    pub(crate) health: Option<Health>,
    pub(crate) ended: Option<Ended>,
    /// The lines that the worker has printed to stderr.
    pub(crate) log: Vec<String>,
}

impl Host {
    pub(crate) fn new(name: &'static str, agent: agent::Host) -> Self {
        Self {
            name,
            agent,
            objects: String::new(),
            notes: Notes::default(),
        }
    }

    /// Clears the notes, and starts this program with the arguments `args` on the host. The
    /// previous program must have ended.
    pub(crate) fn start(&mut self, args: &str) -> Result<()> {
        self.notes = Notes::default();
        let mut argv = words(RETURNING_MEMORY);
        argv.push(env::current_exe()?.display().to_string());
        argv.extend(words(args));
        self.agent.start_with_stdin(&argv)
    }

    /// Writes a line to the stdin of the worker. Does nothing if the worker has already ended.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        self.agent.process()?.tell(line);
        Ok(())
    }

    /// Reads the worker's lines until `until` returns true. Fails if the worker ends first, or if
    /// `until` still returns false after `limit`. The error contains `what`, the name of the
    /// awaited state.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        until: impl Fn(&Notes) -> bool,
        limit: Duration,
    ) -> Result<()> {
        let (mut deadline, name) = (Deadline::after(limit), self.name);
        while !until(&self.notes) {
            if let Some(ended) = &self.notes.ended {
                bail!("host {name}: {ended} before it was {what}");
            }
            let is_late = !self.listen(deadline.left())? && deadline.is_over();
            ensure!(!is_late, "host {name}: still not {what} after {limit:?}");
        }
        Ok(())
    }

    /// Records the worker's next line, or its end. Returns false if neither arrives within `limit`.
    pub(crate) fn listen(&mut self, limit: Duration) -> Result<bool> {
        let (notes, worker) = (&mut self.notes, self.agent.process()?);
        match worker.line(Deadline::exactly_after(limit)) {
            Some(Line::Err(line)) => notes.log.push(line),
            Some(Line::Out(line)) => match serde_json::from_str(&line)? {
                Report::Listens(listens) => notes.listens = listens,
                Report::Flowing => notes.flowing += 1,
                Report::Record(record) => notes.records.push(record),
                Report::Health(health) => notes.health = Some(health),
                Report::Problem(problem) => notes.problems.push(problem),
            },
            None => {
                notes.ended = worker.ended()?;
                return Ok(notes.ended.is_some());
            }
        }
        Ok(true)
    }

    /// Waits until the worker has ended. If `must_succeed` is set, the worker must exit with status
    /// 0.
    pub(crate) fn end(&mut self, limit: Duration, must_succeed: bool) -> Result<()> {
        self.wait("finished", |notes| notes.ended.is_some(), limit)?;
        match &self.notes.ended {
            Some(ended) if must_succeed && !ended.succeeded() => {
                bail!("host {}: {ended}", self.name)
            }
            _ => Ok(()),
        }
    }

    /// Makes a hung worker report its open connections and exit. Kills the worker if it does not
    /// exit.
    fn quit_worker(&mut self) {
        // Ignore the errors: the report is optional, and the host may be down.
        let _ = self.tell("quit");
        let _ = self.end(CLEANUP_LIMIT, false);
        let _ = self.agent.finish(Duration::ZERO);
    }

    /// Runs a shell command on the host. Returns the time at which the command started, in
    /// milliseconds since 1970 by the host's clock.
    fn shell(&mut self, script: &str) -> Result<u64> {
        let ran = self.agent.shell(script);
        Ok(ran.with_context(|| format!("host {}", self.name))?.0)
    }

    fn objects(&mut self) -> Result<String> {
        Ok(self.agent.shell("rdma resource show $LAB_DEV")?.1)
    }

    /// Removes the effects of the fault from this host. Then compares the device's objects with
    /// those before the worker was started, and fails if they differ. Skips this comparison if the
    /// fault has killed this host or removed its device.
    fn clear_up(&mut self, fault: Fault) -> Result<()> {
        match (fault, self.name) {
            (Fault::HostKilled, "b") => return Ok(()),
            (Fault::DeviceRemoved, "b") => {
                // The test creates a new device. Its object counts start at zero, so do not compare
                // them with those of the old device.
                return self.shell(&network::restore_device()).map(drop);
            }
            // Both hosts may be this machine, whose network must not change.
            (Fault::Nothing, _) => {}
            _ => drop(self.shell(network::CLEAR)?),
        }
        self.wait_for_objects()
    }

    /// Waits until the device has the same objects as before the scenario.
    fn wait_for_objects(&mut self) -> Result<()> {
        retry(CLEANUP_LIMIT, Duration::from_millis(100), || {
            let (now, before) = (self.objects()?, &self.objects);
            ensure!(now == *before, "the device has {now}, not {before}");
            Ok(())
        })
    }
}

/// The conductor and the two hosts that it controls. If the lab has only one host, `a` and `b` are
/// both this host.
#[derive(Debug)]
pub(crate) struct Conductor {
    lab: Lab,
    a: Host,
    b: Host,
}

impl Conductor {
    pub(crate) fn new(lab: &Lab) -> Result<Self> {
        let b = match lab.peer {
            peer if peer == lab.addr => agent::Host::here(),
            peer => agent::Host::connect(peer)?,
        };
        Ok(Self {
            lab: lab.clone(),
            a: Host::new("a", agent::Host::here()),
            b: Host::new("b", b),
        })
    }

    /// Runs a scenario and prints the result. Returns true if the scenario passed, or if it does
    /// not apply to the device.
    pub(crate) fn run(&mut self, scenario: &Scenario, seed: u64) -> bool {
        if !scenario.is_possible(&self.lab) {
            println!("{scenario} does not apply: the device has too few queue pairs");
            return true;
        }
        let start = Instant::now();
        let before = slowness();
        let (seen, mut problems) = match self.play(scenario, seed) {
            Ok(began) => {
                let evidence = Evidence {
                    clients: mem::take(&mut self.a.notes.records),
                    servers: mem::take(&mut self.b.notes.records),
                    began,
                    // Use the larger factor, because the machine can be slow at the start or at the
                    // end of the scenario.
                    bound: bound(scenario, before.max(slowness())),
                };
                let problems = judge(scenario, seed, &evidence);
                (summary(scenario, &evidence), problems)
            }
            Err(error) => {
                self.a.quit_worker();
                self.b.quit_worker();
                (String::new(), vec![format!("{error:#}")])
            }
        };
        let mut log = Vec::new();
        for host in [&mut self.a, &mut self.b] {
            let cleared = host.clear_up(scenario.fault);
            let Host { name, notes, .. } = host;
            let uncleared = cleared.err().map(|error| format!("{error:#}"));
            let found = notes.problems.iter().chain(&uncleared);
            problems.extend(found.map(|text| format!("host {name}: {text}")));
            log.extend(notes.log.iter().map(|line| format!("{name}| {line}")));
        }
        let passed = problems.is_empty();
        let verdict = if passed { "ok" } else { "FAILED" };
        let seconds = start.elapsed().as_secs_f64();
        println!("{scenario} {verdict:<6} {seconds:>5.1} s  {seen}");
        let shown = problems.iter().chain(log.iter().filter(|_| !passed));
        let most = match env::var_os("RUST_LOG") {
            None => MOST_PROBLEMS,
            Some(_) => usize::MAX,
        };
        shown.take(most).for_each(|line| println!("    {line}"));
        passed
    }

    /// Runs a scenario until the workers have ended. Returns the time of the fault on each host, as
    /// in [`Evidence::began`].
    fn play(&mut self, scenario: &Scenario, seed: u64) -> Result<[u64; 2]> {
        let mut server = self.lab.peer;
        if let Fault::Network(netem) = scenario.fault {
            self.impair(netem)?;
        } else if scenario.fault == Fault::AddressChanged {
            server = SECOND_ADDRESS.parse()?;
            self.a.shell(&network::add_address("10.8.1.1"))?;
            self.b.shell(&network::add_address(SECOND_ADDRESS))?;
        }
        self.a.objects = self.a.objects()?;
        self.b.objects = self.b.objects()?;
        let worker = format!("worker {} {seed}", scenario.name);
        // Start both workers before waiting for either, so that they prepare at the same time.
        self.a.start(&worker)?;
        self.b.start(&format!("{worker} {server}:0"))?;
        self.b
            .wait("listening", |notes| !notes.listens.is_empty(), TIME_LIMIT)?;
        self.let_clients_connect()?;
        self.b
            .wait("flowing", |notes| notes.flowing > 0, TIME_LIMIT)?;
        self.order_both("go")?;
        match scenario.fault {
            Fault::Cuts => self.flow_through_cuts(scenario.flow)?,
            _ => self.flow(scenario.flow)?,
        }
        self.strike(scenario, seed, &worker)
    }

    /// Sends the addresses of the server to the clients, and waits until all clients are flowing.
    fn let_clients_connect(&mut self) -> Result<()> {
        let listens = serde_json::to_string(&self.b.notes.listens)?;
        self.a.tell(&listens)?;
        self.a
            .wait("flowing", |notes| notes.flowing > 0, 2 * TIME_LIMIT)
    }

    /// Waits for `time` while messages flow. Fails as soon as a worker reports a problem or ends.
    fn flow(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let mut next = Instant::now() + PROGRESS;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            for host in [&mut self.a, &mut self.b] {
                while host.notes.ended.is_none() && host.listen(Duration::ZERO)? {}
                let Host { name, notes, .. } = host;
                let is_well = notes.ended.is_none() && notes.problems.is_empty();
                ensure!(is_well, "host {name} failed while messages flowed");
            }
            if Instant::now() >= next {
                let records = self.a.notes.records.len();
                println!("{records} connections have ended, {left:.0?} of traffic remain");
                next += PROGRESS;
            }
            thread::sleep(left.min(Duration::from_millis(500)));
        }
        Ok(())
    }

    fn order_both(&mut self, word: &str) -> Result<()> {
        self.a.tell(word)?;
        self.b.tell(word)
    }

    pub(crate) fn quit(self) -> Result<()> {
        self.a.agent.quit()?;
        // Ignore the error: if the scenario has killed host b, the agent there has already ended.
        let _ = self.b.agent.quit();
        Ok(())
    }
}

/// Returns the time limit for a side to detect that a connection has ended. The limit includes
/// `Config::resume`, the time for which a session can be suspended. `slowness` is the factor by
/// which this machine is slower than an idle one.
fn bound(scenario: &Scenario, slowness: f64) -> Duration {
    let config = scenario.config();
    let interval = config.keepalive_interval.unwrap_or_default();
    let slack = match scenario.fault {
        // The kernel and the device still answer for a process stopped by SIGSTOP, so keepalive
        // detects the stop late.
        Fault::ProcessStopped(..) => 2 * SLACK,
        _ => SLACK,
    };
    interval + config.keepalive_timeout + config.resume + slack.mul_f64(slowness)
}
