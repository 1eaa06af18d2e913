//! Connections of rdmsg between two hosts while networks, processes, hosts and devices fail: every
//! message is accounted for, and what breaks is learned of in time.
//!
//! Started on a developer's machine it starts itself on both hosts of the lab. There each runs an
//! agent, which starts this program once more for each scenario, as a worker with all connections
//! of its side; host a has the conductor besides.

mod book;
mod conduct;
mod content;
mod host;
mod judge;
mod launch;
mod network;
mod scenario;
mod scenarios;
mod suite;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use toolbox::{Lab, LabDevice, agent};

/// Connections between two hosts while networks, processes, hosts and devices fail
///
/// Runs scenarios on two virtual machines with software RoCE or iWARP and a wire between them. Each
/// has traffic, something that goes wrong, and what both sides must see: every message that was
/// sent is received once, in order, with the right bytes, or its sender is told that this is not
/// known and its receiver that there may be more; what breaks is known in time; nothing is left
/// behind. A scenario that takes what the devices lack is not played, which is said.
///
/// Prints a line for each scenario as it ends, and a table at the end. Ends 0 if all passed.
#[derive(Debug, Parser)]
#[command(
    name = "integration/faults",
    bin_name = "integration/faults",
    verbatim_doc_comment
)]
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
    /// The driver of the virtual machines' devices
    #[arg(long, value_name = "DRIVER", value_enum, default_value_t)]
    device: LabDevice,
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
    play(&Options::parse()).unwrap_or_else(|error| {
        eprintln!("faults: {error:#}");
        ExitCode::FAILURE
    })
}

fn play(options: &Options) -> Result<ExitCode> {
    if let Some(Role::Worker(order)) = &options.role {
        return worker::run(order);
    }
    let choice = &options.choice;
    if choice.list {
        suite::list(choice)?;
    } else if !Lab::is_here() {
        return Err(launch::launch(choice)?);
    } else {
        let lab = Lab::find()?;
        if lab.host == "a" {
            return suite::run(choice, &lab);
        }
        agent::serve()?;
    }
    Ok(ExitCode::SUCCESS)
}
