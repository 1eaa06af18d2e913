//! The services of `cm-examples/services` on two hosts, with the stock clients of their protocols
//! over plain TCP and with clients of rdmsg over RDMA.
//!
//! Host a has an agent that starts the servers; host b has the clients and the table.

mod plan;
mod run;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Parser;
use toolbox::{Lab, Launch, agent};

use self::run::Run;

/// Services over rdmsg, with stock clients too
///
/// Runs each server of cm-examples/services on one host of the lab, and its clients on another.
/// redis-cli, redis-benchmark and curl use plain TCP, and clients of rdmsg use RDMA, against the
/// same server process. Unmodified redis-server and nginx run behind a pair of bridges. Prints a
/// line for each client, and the exit status of each server. Then cuts the network under a running
/// client, which has to end with the error of a lost peer within the keepalive's 5 s, while the
/// server continues. In broker_cut and redis_cut connections resume (--resume): a publisher of the
/// broker and redis-benchmark behind the bridges notice no outage of 20 s, and each message and
/// each request takes effect once. Exits with 0 if every step passed.
///
/// The rates come from virtual machines in which each instruction is emulated. They do not predict
/// the rates of hardware.
#[derive(Parser)]
#[command(
    name = "integration/services",
    bin_name = "integration/services",
    verbatim_doc_comment
)]
struct Options {
    /// Few requests each and short pages, and the network is not cut
    #[arg(long)]
    quick: bool,
    /// Only the service of this name, as the first column has it; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if !Lab::is_here() {
        let limit = Duration::from_secs(if options.quick { 1200 } else { 3600 });
        let launch = Launch::new(2, limit).option("--memory", "2G");
        let launch = launch.native_where_possible()?.own_arguments();
        return launch.run_without_names();
    }
    let lab = Lab::find()?;
    if lab.host == "a" {
        agent::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    let failed = Run::new(lab.peer, options.quick)?.all(&options.only)?;
    println!("{failed} failed");
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
