//! Compares rdmsg with the stock C programs on one RDMA device.
//!
//! One host has an [`agent`] that starts servers. On the other [`mod@compare`] runs clients against them, ours and theirs in turn, as its
//! [`plan`] says, and prints a [`table`]. Our programs are [`traffic`] and [`memory`]; how the stock ones are called is in [`program`].

mod agent;
mod child;
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

use std::{process::ExitCode, thread};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::{agent::Agent, compare::Comparison, traffic::Traffic};

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare everything and print the table; to be run on every host of the lab
    Compare(Compare),
    /// Answer what `client` with the same options sends
    Server(Traffic),
    /// Measure with messages, against `server` with the same options
    Client(Traffic),
    /// Accept connections that stay idle, until they are closed
    IdleServer(memory::Idle),
    /// Say what an idle connection costs, against `idle-server` with the same options
    IdleClient(memory::Idle),
}

/// What to compare.
#[derive(Args)]
struct Compare {
    /// How many hosts take part
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,
    /// Few rounds, short runs and only the sizes that have a target
    #[arg(long)]
    quick: bool,
    /// Exit 1 if a target is missed
    #[arg(long)]
    strict: bool,
    /// How often each program runs [default: 7, with --quick 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// How many idle connections to open
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Compare(options) => return compare(options),
        Command::Server(traffic) => traffic.serve()?,
        Command::Client(traffic) => println!("{}", traffic.measure()?),
        Command::IdleServer(idle) => idle.serve()?,
        Command::IdleClient(idle) => println!("{}", idle.measure()?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Host b compares, with the agent on host a. A host that is alone does both.
fn compare(options: &Compare) -> Result<ExitCode> {
    let host = variable("LAB_HOST")?;
    let address = variable("LAB_ADDR")?;
    let peer = variable("LAB_PEER")?;
    if host == "b" {
        return Comparison::new(options, peer)?.run();
    }
    let agent = Agent::bind(&address)?;
    if options.hosts == 2 {
        agent.serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    let agent = thread::spawn(move || agent.serve());
    let code = Comparison::new(options, address)?.run()?;
    agent.join().expect("the agent does not panic")?;
    Ok(code)
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name)
        .with_context(|| format!("{name} is not set; this is run by integration/bench, in the lab"))
}
