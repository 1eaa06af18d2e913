//! Connections of rdmsg between two programs: with faults of networks, processes, hosts and
//! devices, without faults for a long time, and with hostile peers among honest ones. Both sides
//! record each message, and the records must agree; resources must not leak.
//!
//! On a developer's machine the program starts itself on the hosts of the lab. Each host has an
//! agent, which starts this program once more for each scenario, as a worker with all connections
//! of its side. Host a also runs the conductor.

mod attack;
mod conduct;
mod health;
mod judge;
mod network;
mod plan;
mod record;
mod scenario;
mod worker;

use std::{env, process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use clap::{Args, Parser};
use toolbox::{Lab, LabDevice, Launch, agent};

use crate::{
    conduct::Conductor,
    scenario::{EVERY_END, SESSION_ENDS, Scenario},
};

/// A program whose allocator returns freed memory to the system, so that it is not resident.
const RETURNING_MEMORY: &str = "env MALLOC_MMAP_THRESHOLD_=131072 MALLOC_ARENA_MAX=2";

/// The longest part of a soak. After each part the records of both sides are compared.
const PART: Duration = Duration::from_secs(600);

#[derive(Parser)]
#[command(args_override_self = true)]
enum Command {
    Faults(Faults),
    Attack(attack::Options),
    #[command(hide = true)]
    Worker(worker::Order),
    #[command(hide = true)]
    Victim {
        #[arg(long)]
        rdma: bool,
    },
}

/// Connections between two hosts, with faults or for a long time
///
/// Runs scenarios on two virtual machines with software RoCE or iWARP and a wire between them. Each
/// has traffic, a fault of the network, a process, a host or a device, and a result that both sides
/// must see: every message that was sent is received once, in order, with the right bytes, or its
/// sender learns that this is not known and its receiver that there may be more; breaks are known
/// in time. Connections with sessions resume after a cut. Nothing may be left behind: RDMA
/// resources, file descriptors, pinned and resident memory are as at the start, and no receiver was
/// ever without a receive (RNR NAK). Software iWARP has too few queue pairs for some scenarios,
/// which are not played there.
///
/// `--minutes`, which integration/soak sets to 10, plays every-end alone: eight connections at a
/// time with all kinds of configurations, messages of 0 B to 8 MiB both ways, some held for a
/// while, received by recv, Select and try_recv; connections are closed, dropped and aborted, also
/// while the other side sends, and each is followed by another one. The records are compared, and
/// the resources counted, every ten minutes. With `--cuts` they are sessions, and the network is
/// cut every 20 s for 6, 1 and 0.1 s in turn.
///
/// Prints a line for each scenario as it ends. Ends 0 if all passed.
#[derive(Args)]
#[command(verbatim_doc_comment, override_usage = "integration/faults [OPTIONS]")]
struct Faults {
    /// Only some scenarios, in less than three minutes
    #[arg(long)]
    quick: bool,
    /// Only scenarios whose names begin so; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Minutes of new connections with every end, fractions allowed
    #[arg(long, value_name = "N", value_parser = minutes)]
    minutes: Option<Duration>,
    /// With --minutes: connections that resume, and a cut every 20 s
    #[arg(long, requires = "minutes", conflicts_with = "one_host")]
    cuts: bool,
    /// The seed of all random choices [default: a new one, which is printed]
    #[arg(long, value_name = "N", hide_default_value = true)]
    #[arg(default_value_t = fastrand::u64(..1 << 32))]
    seed: u64,
    /// The driver of the virtual machines' devices
    #[arg(long, value_name = "DRIVER", value_enum, default_value_t)]
    device: LabDevice,
    /// Run both sides on one host: on this machine if it has RDMA
    #[arg(long, requires = "minutes")]
    one_host: bool,
    /// Print the scenarios
    #[arg(long)]
    list: bool,
}

/// Parses a number of minutes, above 0 and below a month.
fn minutes(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes < 43_200.0 => {
            Ok(Duration::from_secs_f64(minutes * 60.0))
        }
        _ => Err("a number of minutes above 0 and below 43200 is needed".into()),
    }
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Faults(faults) => faults.run(),
        Command::Attack(attack) => attack.run(),
        Command::Worker(order) => worker::run(&order).map(|()| ExitCode::SUCCESS),
        Command::Victim { rdma } => attack::victim::run(rdma).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("FAILED: {error:#}");
        ExitCode::FAILURE
    })
}

/// Gives a launch this program's arguments and the seed.
fn with_arguments(launch: Launch, seed: u64) -> Launch {
    let arguments = env::args().skip(1).chain([format!("--seed={seed}")]);
    arguments.fold(launch, Launch::argument)
}

impl Faults {
    fn run(&self) -> Result<ExitCode> {
        let scenarios = self.scenarios()?;
        if self.list {
            for (scenario, _) in scenarios {
                println!("{scenario} {}", if scenario.quick { "quick" } else { "" });
            }
        } else if !Lab::is_here() {
            return Err(self.launch()?.exec());
        } else if Lab::find()?.host != "a" {
            agent::serve()?;
        } else {
            let mut conductor = Conductor::new(&Lab::find()?)?;
            let mut failed = Vec::new();
            for (scenario, seed) in &scenarios {
                if !conductor.run(scenario, *seed) {
                    failed.push((scenario.name, seed));
                }
            }
            conductor.quit()?;
            let (all, some) = (scenarios.len(), failed.len());
            println!(
                "{} of {all} scenarios passed, seed {}",
                all - some,
                self.seed
            );
            ensure!(
                failed.is_empty(),
                "these scenarios with these seeds: {failed:?}"
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the selected scenarios, each with its seed.
    fn scenarios(&self) -> Result<Vec<(Scenario, u64)>> {
        let mut scenarios = Vec::new();
        if let Some(mut left) = self.minutes {
            while !left.is_zero() {
                let name = if self.cuts { SESSION_ENDS } else { EVERY_END };
                let mut scenario = Scenario::named(name)?;
                scenario.flow = left.min(PART);
                left -= scenario.flow;
                scenarios.push((scenario, self.seed.wrapping_add(scenarios.len() as u64)));
            }
        } else {
            let is_named = |name: &str| self.only.iter().any(|only| name.starts_with(only));
            let all = scenario::all().into_iter();
            let quick = all.filter(|scenario| scenario.quick || !self.quick);
            let named = quick.filter(|one| self.only.is_empty() || is_named(one.name));
            scenarios.extend(named.map(|scenario| (scenario, self.seed)));
        }
        ensure!(
            !scenarios.is_empty(),
            "there is no such scenario; see --list"
        );
        Ok(scenarios)
    }

    /// Returns the launch on the hosts of the lab, because faults need virtual networks and hosts.
    fn launch(&self) -> Result<Launch> {
        println!("seed {}", self.seed);
        let limit = self.minutes.unwrap_or_default() * 6 / 5 + Duration::from_secs(3000);
        let launch = if self.one_host {
            Launch::new(1, limit).native_where_possible()?
        } else {
            Launch::new(2, limit).option("--may-die", "b")
        };
        let launch = launch.option("--memory", "2G").device(self.device);
        Ok(with_arguments(launch, self.seed))
    }
}
