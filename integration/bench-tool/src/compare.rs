use std::{
    fs::{self, File},
    io::Write,
    net::IpAddr,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use toolbox::{Ended, Lab, Listening, Process, agent::Host};

use crate::{
    Compare,
    memory::{Cost, Idle},
    plan::Plan,
    program::{CommandLines, Program, ourselves},
    results::Results,
    table,
};

/// The first server's port; each has one of its own.
const FIRST_PORT: u16 = 20_000;

/// How long a client may run.
const CLIENT_LIMIT: Duration = Duration::from_secs(120);

/// How long a server may take to end after its client.
const END_LIMIT: Duration = Duration::from_secs(10);

/// How often a stock program is tried: now and then one crashes.
const ATTEMPTS: u32 = 4;

/// Runs a plan round by round.
#[derive(Debug)]
pub(crate) struct Comparison {
    plan: Plan,
    rounds: u32,
    strict: bool,
    connections: u32,
    /// Where the servers are.
    agent: Host,
    address: IpAddr,
    /// Whether that is this host.
    alone: bool,
    device: String,
    next_port: u16,
    /// What the reader of the table should know.
    notes: Vec<String>,
    /// What each run printed.
    log: File,
}

impl Comparison {
    pub(crate) fn new(options: &Compare, lab: &Lab) -> Result<Self> {
        let address = if options.hosts == 1 {
            lab.addr
        } else {
            lab.peer
        };
        fs::create_dir_all(&lab.results)?;
        let log = lab.results.join("bench.log");
        Ok(Self {
            plan: Plan::new(options.quick),
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 7 }),
            strict: options.strict,
            connections: options.connections,
            alone: options.hosts == 1,
            agent: Host::connect(address)?,
            address,
            device: lab.device.clone(),
            next_port: FIRST_PORT,
            notes: Vec::new(),
            log: File::create(&log).with_context(|| format!("cannot write {}", log.display()))?,
        })
    }

    /// Exits 1 if something could not be measured, or if it is strict and a target is missed.
    pub(crate) fn run(mut self) -> Result<ExitCode> {
        let outcome = self.measure();
        // Whatever happened, the other host is not to wait for more.
        let dismissed = self.agent.quit();
        let good = outcome?;
        dismissed?;
        Ok(if good {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn measure(&mut self) -> Result<bool> {
        let runs = self.plan.runs.clone();
        let mut results = vec![Results::default(); runs.len()];
        for round in 1..=self.rounds {
            eprintln!("bench: round {round} of {}", self.rounds);
            for (run, results) in runs.iter().zip(&mut results) {
                if results.has_failed() {
                    continue;
                }
                let what = format!("round {round}, {run}");
                let tries = match run.program {
                    Program::Perftest | Program::Rstream => ATTEMPTS,
                    Program::Rdmsg(_) => 1,
                };
                let reading = self.attempt(&what, tries, |this| {
                    let port = this.port();
                    let lines = run.command_lines(this.address, &this.device, port)?;
                    run.read(&this.client_of(&what, port, &lines)?)
                });
                results.add(reading);
            }
        }
        println!(
            "rdmsg and the stock programs on {}, {}: median [min .. max] of {} rounds",
            self.device,
            if self.alone { "one host" } else { "two hosts" },
            self.rounds
        );
        let summary = table::print(&self.plan, &results);
        let memory = [false, true].map(|small| self.memory(small));
        println!("\nwhat an idle connection costs, of {}", self.connections);
        for cost in memory.iter().flatten() {
            println!("  {cost}");
        }
        for note in &self.notes {
            println!("note: {note}");
        }
        println!("\n{summary}");
        let complete =
            !results.iter().any(Results::has_failed) && memory.iter().all(Option::is_some);
        Ok(complete && (summary.missed == 0 || !self.strict))
    }

    /// What an idle connection costs, in words.
    fn memory(&mut self, small: bool) -> Option<String> {
        let what = format!(
            "memory, {} configuration",
            if small { "small" } else { "default" }
        );
        let (cost, description) = self.attempt(&what, 1, |this| {
            let port = this.port();
            let idle = Idle {
                address: this.address,
                port,
                connections: this.connections,
                small,
            };
            let lines = CommandLines {
                server: ourselves("idle-server", idle.arguments())?,
                client: ourselves("idle-client", idle.arguments())?,
            };
            let cost = Cost::read(&this.client_of(&what, port, &lines)?)?;
            Ok((cost, idle.describe()))
        })?;
        // Both ends are alike, so on one host half of it is one's.
        let ends = if self.alone { 2 } else { 1 };
        Some(format!(
            "{description}: {} KiB resident, of that {} KiB pinned; the host's free memory shrinks by {} KiB",
            cost.resident >> 10,
            cost.pinned >> 10,
            (cost.host >> 10) / ends
        ))
    }

    /// Tries something; what fails is noted.
    fn attempt<T>(
        &mut self,
        what: &str,
        attempts: u32,
        mut once: impl FnMut(&mut Self) -> Result<T>,
    ) -> Option<T> {
        for attempt in 1..=attempts {
            match once(self) {
                Ok(value) => return Some(value),
                Err(error) => {
                    let next = if attempt < attempts {
                        "tried again"
                    } else {
                        "given up"
                    };
                    self.notes.push(format!("{what}: {next}: {error:#}"));
                }
            }
        }
        None
    }

    /// Runs a client against its server, and returns what it printed.
    fn client_of(&mut self, what: &str, port: u16, lines: &CommandLines) -> Result<String> {
        let start = Instant::now();
        self.agent.start(&lines.server)?;
        if !self.agent.listens(Listening::Cm(port))? {
            let server = self.agent.finish(END_LIMIT)?;
            bail!("{} ended at once: {server}", lines.server[0]);
        }
        let client = Process::start(&lines.client)?.finish(CLIENT_LIMIT)?;
        // One whose client failed waits for it in vain.
        let limit = if client.succeeded() {
            END_LIMIT
        } else {
            Duration::ZERO
        };
        let server = self.agent.finish(limit)?;
        let Ended { output, .. } = &client;
        writeln!(
            self.log,
            "== {what} ({:.1} s)\n{}",
            start.elapsed().as_secs_f64(),
            output.trim_end()
        )?;
        if !client.succeeded() {
            bail!("the client ended: {client}; its server: {server}");
        }
        Ok(client.output)
    }

    fn port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port += 1;
        port
    }
}
