//! Measures the costs of a pair of bridges.

mod copier;
mod here;
mod load;
mod redis;

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use clap::Parser;
use toolbox::{Lab, Launch};

/// Costs of a pair of bridges
///
/// Runs redis-server and redis-benchmark (GET) as they come from the distribution: over TCP, and
/// through a pair of `rdmsg bridge` with rdmsg over its own TCP, and over RDMA, between them. All
/// of it runs in one guest of the lab whose clock counts instructions: a microsecond is a thousand
/// of them, of all programs and the kernel together, on one processor.
///
/// Prints the median, which redis-benchmark rounds to 8 µs, the mean, and the time that the pair
/// adds to the mean, in multiples of that over TCP. The target is below 2. Ends 0 if everything
/// ran.
///
/// With --no-lab it measures on this machine, over TCP on loopback: connections with one request
/// each, requests of 64 B, values of 100 KB and streams. Each goes directly, through two programs
/// that only copy bytes, with two threads a connection, and through a pair of bridges. The table
/// has the median rate of all rounds, and the processor time of both programs or bridges together.
/// Other programs that run on the machine change the rates more than the processor times.
#[derive(Parser)]
#[command(
    name = "integration/bridges",
    bin_name = "integration/bridges",
    verbatim_doc_comment
)]
struct Options {
    /// Requests for each line of the table.
    #[arg(long, default_value_t = 3000)]
    requests: u32,

    /// Connections at a time; may be repeated.
    #[arg(long, default_values_t = [1])]
    clients: Vec<u32>,

    /// Measure on this machine, without RDMA.
    #[arg(long, conflicts_with_all = ["requests", "clients"])]
    no_lab: bool,

    /// Seconds for each measurement of --no-lab.
    #[arg(long, default_value_t = 1, requires = "no_lab",
        value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// Measurements of each line of --no-lab.
    #[arg(long, default_value_t = 3, requires = "no_lab",
        value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Be one of the programs that only copy bytes, to this address.
    #[arg(long, hide = true)]
    copy_to: Option<SocketAddr>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(target) = options.copy_to {
        copier::run(target)
    } else if options.no_lab {
        here::measure(Duration::from_secs(options.seconds), options.rounds)
    } else if Lab::is_here() {
        redis::measure(options.requests, &options.clients)
    } else {
        // This program runs again there.
        let lab = Launch::counted(Duration::from_secs(900));
        Err(lab.own_arguments().exec())
    }
}
