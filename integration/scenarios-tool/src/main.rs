//! Tests connections of rdmsg between two programs. Networks, processes, hosts or devices fail
//! during some tests. Other tests run for a long time. In further tests, hostile peers attack a
//! program. Both sides write records that account for each message. No resource may leak.
//!
//! On a developer's machine, the program starts itself on the hosts of the lab. Each host runs an
//! agent. For each scenario, the agent starts this program as a worker, which runs all connections
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

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use clap::{Args, Parser};
use toolbox::{Lab, LabDevice, Launch, agent};

use crate::{
    conduct::Conductor,
    scenario::{EVERY_END, EVERY_END_TCP, SESSION_ENDS, Scenario},
};

/// A command prefix that makes the allocator return freed memory to the kernel. Without this
/// prefix, freed memory would stay resident.
const RETURNING_MEMORY: &str = "env MALLOC_MMAP_THRESHOLD_=131072 MALLOC_ARENA_MAX=2";

/// The maximum duration of one part of a soak. The records are checked after each part.
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

/// Runs connections between two hosts, with faults or for a long time
///
/// Runs scenarios on two virtual machines that have software RoCE or iWARP devices and are
/// connected by a virtual network. Each scenario combines traffic with a fault of the network, a
/// process, a host or a device. It passes if the connections behave as follows:
///
///   - Every message that was sent is received once, in order and with the right bytes. Otherwise
///     its sender gets an unknown outcome, and its receiver gets an error instead of an orderly
///     close.
///   - Both sides detect a broken connection in time. Connections with sessions resume after the
///     network was cut.
///   - Nothing leaks: RDMA resources, file descriptors, pinned memory and resident memory are the
///     same at the end as at the start.
///   - The receivers always have a posted receive (no RNR NAK).
///
/// Software iWARP has too few queue pairs for some scenarios. They are skipped on such devices.
///
/// With `--minutes` (integration/soak passes 10), runs only the scenario every-end, which has
/// eight connections at a time with random configurations. Both sides send messages of 0 B to
/// 8 MiB, receive them with recv, Select or try_recv, and hold some of them for a while.
/// Connections are closed, dropped and aborted, even while the other side sends. When a connection
/// ends, the client opens a new one. Every ten minutes, the tool compares the records of both sides
/// and counts the resources. With `--cuts`, connections resume, and the network is cut every 20 s:
/// for 6 s, 1 s and 0.1 s in turn.
///
/// Prints a line for each scenario when it ends. If RUST_LOG is set, both sides write logs, and the
/// logs of each failed scenario are printed. The exit status is 0 if all scenarios passed.
#[derive(Args)]
#[command(verbatim_doc_comment, override_usage = "integration/faults [OPTIONS]")]
struct Faults {
    /// Run a selection of scenarios that takes less than three minutes
    #[arg(long)]
    quick: bool,
    /// Run only scenarios whose names begin with NAME; can be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run only the scenario every-end, for N minutes; N may be a fraction such as 0.5
    #[arg(long, value_name = "N", value_parser = minutes)]
    minutes: Option<Duration>,
    /// With --minutes: use connections that resume, and cut the network every 20 s
    #[arg(long, requires = "minutes", conflicts_with = "one_host")]
    cuts: bool,
    /// With --minutes: use connections over TCP
    #[arg(long, requires = "minutes", conflicts_with = "cuts")]
    tcp: bool,
    /// Seed of all random choices [default: a random seed, which is printed]
    #[arg(long, value_name = "N", hide_default_value = true)]
    #[arg(default_value_t = fastrand::u64(..1 << 32))]
    seed: u64,
    /// Driver of the virtual machines' RDMA devices
    #[arg(long, value_name = "DRIVER", value_enum, default_value_t)]
    device: LabDevice,
    /// With --minutes: run both sides on one host: on this machine if it has RDMA, otherwise on a
    /// virtual machine
    #[arg(long, requires = "minutes")]
    one_host: bool,
    /// Print the names of the scenarios, and exit; `quick` marks the selection of --quick
    #[arg(long)]
    list: bool,
}

/// Parses a number of minutes, which must be more than 0 and less than 43200 (30 days).
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
            let (all, seed) = (scenarios.len(), self.seed);
            let passed = all - failed.len();
            println!("{passed} of {all} scenarios passed, seed {seed}");
            ensure!(failed.is_empty(), "failed, with their seeds: {failed:?}");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the selected scenarios, each with its seed.
    fn scenarios(&self) -> Result<Vec<(Scenario, u64)>> {
        let mut scenarios = Vec::new();
        if let Some(mut left) = self.minutes {
            let mut scenario = Scenario::named(match (self.cuts, self.tcp) {
                (true, _) => SESSION_ENDS,
                (false, true) => EVERY_END_TCP,
                (false, false) => EVERY_END,
            })?;
            while !left.is_zero() {
                scenario.flow = left.min(PART);
                left -= scenario.flow;
                let seed = self.seed.wrapping_add(scenarios.len() as u64);
                scenarios.push((scenario.clone(), seed));
            }
        } else {
            let is_named = |name: &str| self.only.iter().any(|only| name.starts_with(only));
            let mut chosen = scenario::all();
            chosen.retain(|scenario| scenario.quick || !self.quick);
            chosen.retain(|scenario| self.only.is_empty() || is_named(scenario.name));
            scenarios.extend(chosen.into_iter().map(|scenario| (scenario, self.seed)));
        }
        ensure!(
            !scenarios.is_empty(),
            "no scenario has this name; see --list"
        );
        Ok(scenarios)
    }

    /// Returns a launch of this program on the hosts of the lab. If `one_host` is set, the only
    /// host is this machine if possible, and a virtual machine if not. If `one_host` is not set,
    /// the hosts are two virtual machines, because most faults need virtual hosts and networks.
    fn launch(&self) -> Result<Launch> {
        println!("seed {}", self.seed);
        let limit = self.minutes.unwrap_or_default() * 6 / 5 + Duration::from_secs(3000);
        let options = format!("--memory 2G {}", self.device.option());
        let launch = if self.one_host {
            Launch::new(&options, limit).native_where_possible()?
        } else {
            Launch::new(&format!("--hosts 2 --may-die b {options}"), limit)
        };
        Ok(launch.argument(format!("--seed={}", self.seed)))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use toolbox::check_help;

    use super::*;

    #[test]
    fn scripts_print_the_help_of_their_commands() {
        let mut command = Command::command();
        command.build();
        for name in ["faults", "attack"] {
            let command = command.find_subcommand_mut(name).unwrap();
            let help = command.render_long_help().to_string();
            check_help(&format!("scenarios-{name}"), &help);
        }
    }
}
