//! Compares rdmsg with the stock C programs on one RDMA device.
//!
//! Started on a developer's machine it starts itself on the hosts of the lab. There one host has an
//! agent that starts servers. On the other [`mod@compare`] runs clients against them, ours and
//! theirs in turn, as its [`plan`] says, and prints a [`table`]. Our programs are [`traffic`] and
//! [`memory`]; how the stock ones are called is in [`program`].

mod carrier;
mod compare;
mod manner;
mod memory;
mod plan;
mod program;
mod reading;
mod results;
mod samples;
mod table;
mod target;
mod traffic;

use std::{fs, process::ExitCode, thread::available_parallelism, time::Duration};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use toolbox::{Lab, Launch, agent};

use crate::{compare::Comparison, traffic::Traffic};

/// rdmsg against the stock C programs, on one device, in turn
///
/// Prints the medians and the spread of both, their ratio, and whether it meets its target:
///
///   half round trip at 64 B          against ib_send_lat -R  at most 1.15
///   bandwidth at 64 KiB and 1 MiB    against ib_send_bw -R   at least 0.95
///   message rate at 64 B             against ib_send_bw -R   at least 0.80
///   half round trip and bandwidth    against rstream         ahead at every size
///   memory of an idle connection     with the default Config and with a small one
///
/// Ours is "rdmsg" with the default Config; "busy" polls all the time, as the stock programs do;
/// "owned" sends without a copy; "eager" has buffers posted that are as long as the message. By
/// ib_send_lat, which tells the median of its round trips, it is compared by that, and by rstream,
/// which tells the mean, by the mean.
///
/// Ends 0 if everything was measured. What each run printed is in target/lab/results/*/bench.log.
/// Figures of a device in software say little by themselves; ratios do, as far as they exceed the
/// spread. Other load on the machine spoils both.
#[derive(Parser)]
#[command(
    name = "integration/bench",
    bin_name = "integration/bench",
    verbatim_doc_comment
)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Compare,
}

/// What the programs that are measured do; the comparison starts them.
#[derive(Subcommand)]
enum Role {
    /// Answer what `client` with the same options sends
    #[command(hide = true)]
    Server(Traffic),
    /// Measure with messages, against `server` with the same options
    #[command(hide = true)]
    Client(Traffic),
    /// Accept connections that stay idle, until they are closed
    #[command(hide = true)]
    IdleServer(memory::Idle),
    /// Say what an idle connection costs, against `idle-server` with the same options
    #[command(hide = true)]
    IdleClient(memory::Idle),
}

/// What to compare.
#[derive(Args)]
struct Compare {
    /// One host, whose device loops back, or two with a wire between them
    ///
    /// Virtual machines share the processors of this one, and their wire takes longer than the
    /// programs do and varies more.
    #[arg(long, verbatim_doc_comment, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,
    /// 3 rounds of short runs, at the sizes that have a target: two minutes on an idle machine
    #[arg(long)]
    quick: bool,
    /// End 1 if a target is missed
    #[arg(long)]
    strict: bool,
    /// How often each program runs [default: 7, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// How many idle connections to open
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
}

fn main() -> ExitCode {
    run(&Cli::parse()).unwrap_or_else(|error| {
        eprintln!("bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(cli: &Cli) -> Result<ExitCode> {
    match &cli.role {
        Some(Role::Server(traffic)) => traffic.serve()?,
        Some(Role::Client(traffic)) => println!("{}", traffic.measure()?),
        Some(Role::IdleServer(idle)) => idle.serve()?,
        Some(Role::IdleClient(idle)) => println!("{}", idle.measure()?),
        None if Lab::is_here() => return compare(&cli.options),
        None => return launch(&cli.options),
    }
    Ok(ExitCode::SUCCESS)
}

fn launch(options: &Compare) -> Result<ExitCode> {
    let (load, processors) = (
        fs::read_to_string("/proc/loadavg")?,
        available_parallelism()?,
    );
    let load = load.split(' ').next().unwrap_or_default();
    println!(
        "bench: before this the load was {load}, with {processors} processors; what else runs spoils \
         the figures"
    );
    let limit = Duration::from_secs(if options.quick { 900 } else { 3600 });
    let memory = if options.hosts == 1 { "2G" } else { "1G" };
    let mut launch = Launch::new(options.hosts, limit)
        .option("--memory", memory)
        .native_where_possible()?
        .argument(format!("--hosts={}", options.hosts))
        .argument(format!("--connections={}", options.connections));
    for (name, wanted) in [("--quick", options.quick), ("--strict", options.strict)] {
        if wanted {
            launch = launch.argument(name);
        }
    }
    if let Some(rounds) = options.rounds {
        launch = launch.argument(format!("--rounds={rounds}"));
    }
    launch.run_without_names()
}

/// Host b compares, with the agent on host a. A host that is alone does both.
fn compare(options: &Compare) -> Result<ExitCode> {
    let lab = Lab::find()?;
    if options.hosts == 1 {
        agent::serve_beside();
    } else if lab.host == "a" {
        agent::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    Comparison::new(options, &lab)?.run()
}
