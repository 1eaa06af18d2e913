//! Connections of rdmsg between two hosts while networks, processes, hosts and devices fail: every
//! message is accounted for, and what breaks is learned of in time.
//!
//! Started on a developer's machine it starts itself on both hosts of the lab. There each runs an
//! agent, which starts this program once more for each scenario, as a worker with all connections
//! of its side; host a has the conductor besides.

mod agent;
mod book;
mod clock;
mod conduct;
mod content;
mod host;
mod judge;
mod launch;
mod network;
mod process;
mod scenario;
mod scenarios;
mod suite;
mod worker;

use std::{env, process::ExitCode};

use clap::{Parser, Subcommand};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Connections between two hosts while networks, processes, hosts and devices fail
///
/// Runs scenarios on two virtual machines with software RoCE and a wire between them. Each has
/// traffic, something that goes wrong, and what both sides must see: every message that was sent is
/// received once, in order, with the right bytes, or its sender is told that this is not known and
/// its receiver that there may be more; what breaks is known in time; nothing is left behind.
/// Prints a line for each scenario as it ends, and a table at the end. Ends 0 if all passed.
#[derive(Debug, Parser)]
#[command(name = "integration/faults", bin_name = "integration/faults")]
struct Options {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    choice: Choice,
}

#[derive(clap::Args, Debug)]
struct Choice {
    /// Only some scenarios, in less than three minutes
    #[arg(long)]
    quick: bool,
    /// Only scenarios whose names begin so; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Say which scenarios there are
    #[arg(long)]
    list: bool,
    /// What decides the messages' lengths and bytes; it is printed [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One side of a scenario; agents start it.
    #[command(hide = true)]
    Worker(worker::Order),
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match (&options.role, env::var("LAB_HOST").as_deref()) {
        (Some(Role::Worker(order)), _) => worker::run(order),
        (None, _) if options.choice.list => suite::list(&options.choice),
        (None, Ok("a")) => suite::run(&options.choice),
        (None, Ok("b")) => agent::serve().map(|()| ExitCode::SUCCESS),
        (None, _) => launch::launch(&options.choice),
    };
    result.unwrap_or_else(|error| {
        eprintln!("faults: {error}");
        ExitCode::FAILURE
    })
}
