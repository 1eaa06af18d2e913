//! Measures the costs of a pair of bridges: in the lab, the time that the bridges add to a request,
//! and with `--no-lab`, rates and processor time.

mod copier;
mod here;
mod load;
mod redis;

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use clap::Parser;
use toolbox::{Lab, Launch};

/// Measures the costs of a pair of bridges
///
/// Runs redis-server and redis-benchmark (GET), as the distribution installs them, in three ways:
/// directly over TCP; through two `rdmsg bridge` processes that communicate over TCP; and through
/// two `rdmsg bridge` processes that communicate over RDMA. All programs run in one guest of the
/// lab with one processor. The clock of the guest counts instructions: one microsecond is 1000
/// instructions, executed by any of the programs or by the kernel.
///
/// Prints the median of the request times, which redis-benchmark rounds to 8 µs, and their mean.
/// Also prints the time that the pair of bridges adds to the mean, as a multiple of the mean over
/// direct TCP. The target is a multiple below 2. The exit status is 0 if all programs succeeded,
/// even if the target is missed.
///
/// With --no-lab, measures on this machine, over TCP on the loopback interface. The loads are
/// connections with one request each, requests of 64 B, values of 100 KB, and streams. Each load
/// runs in three ways: directly, through two programs that only copy bytes with two threads per
/// connection, and through a pair of bridges. The table contains the median of the rates of all
/// rounds, and the processor time of both copying programs or of both bridges. Other load on the
/// machine affects the rates more than the processor times.
#[derive(Parser)]
#[command(bin_name = "integration/bridges", verbatim_doc_comment)]
struct Options {
    /// Measure on this machine, without RDMA.
    #[arg(long)]
    no_lab: bool,

    /// Run as a program that only copies bytes to and from this address.
    #[arg(long, hide = true)]
    copy_to: Option<SocketAddr>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(target) = options.copy_to {
        copier::run(target)
    } else if options.no_lab {
        here::measure()
    } else if Lab::is_here() {
        redis::measure()
    } else {
        // Run this program again, in a guest of the lab.
        Err(Launch::new("--counted", Duration::from_secs(900)).exec())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use toolbox::check_help;

    use super::*;

    #[test]
    fn script_prints_the_help_of_its_tool() {
        check_help(
            "bridges",
            &Options::command().render_long_help().to_string(),
        );
    }
}
