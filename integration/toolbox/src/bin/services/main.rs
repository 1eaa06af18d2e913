//! Runs the services of `cm-examples/services` on two hosts of the lab. Stock clients connect over
//! plain TCP, and clients of rdmsg connect over RDMA.
//!
//! On host a, an agent starts the servers. Host b runs the clients and prints the table.

mod plan;
mod run;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Parser;
use toolbox::{Lab, Launch, agent};

use self::run::Run;

/// Runs the example services with clients of rdmsg and with stock clients
///
/// Runs each server of cm-examples/services on one host of the lab and its clients on another host.
/// The same server process serves clients of rdmsg over RDMA, and redis-cli, redis-benchmark and
/// curl over plain TCP. Unmodified redis-server and nginx run behind a pair of bridges. Prints a
/// line for each client, and the exit status of each server.
///
/// Then cuts the network while a client runs. Keepalive must end this client within 5 s with an
/// error that reports a lost peer, and the server must continue. In broker_cut and redis_cut,
/// connections resume (--resume). After an outage of 20 s, a publisher of the broker and
/// redis-benchmark behind the bridges must continue without an error. Each message and each request
/// must take effect exactly once.
///
/// The exit status is 0 if every step passed. The virtual machines emulate each instruction, so the
/// printed rates say nothing about rates on hardware.
#[derive(Parser)]
#[command(bin_name = "integration/services", verbatim_doc_comment)]
struct Options {
    /// Send fewer requests and shorter pages, and do not cut the network
    #[arg(long)]
    quick: bool,
    /// Run only the service with this name (first column of the table); can be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if !Lab::is_here() {
        let limit = Duration::from_secs(if options.quick { 1200 } else { 3600 });
        let launch = Launch::new("--hosts 2 --memory 2G", limit);
        return launch.native_where_possible()?.run_without_names();
    }
    let lab = Lab::find()?;
    if lab.host == "a" {
        agent::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    let failed = Run::new(lab.peer, options.quick)?.all(&options.only)?;
    println!("{failed} failed");
    Ok(u8::from(failed > 0).into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use toolbox::check_help;

    use super::*;

    #[test]
    fn script_prints_the_help_of_its_tool() {
        check_help(
            "services",
            &Options::command().render_long_help().to_string(),
        );
    }
}
