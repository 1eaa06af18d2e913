//! Many connections between two programs, for a long time: messages of all sizes both ways, some
//! kept for a while, and connections that end in every way there is, each followed by the next one.
//! Every message is accounted for, and at the end nothing may be left behind.
//!
//! Started on a developer's machine it starts itself on the hosts of the lab: the server on a, the
//! client on b, or both on one.

mod board;
mod book;
mod client;
mod content;
mod control;
mod inbox;
mod keeper;
mod ledger;
mod plan;
mod readers;
mod run;
mod server;
mod session;
mod soak;
mod totals;

use std::{
    env,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Parser;
use toolbox::{Lab, LabDevice, Launch, Side};

use crate::soak::{Settings, Soak};

/// Many connections for a long time, with every message accounted for
///
/// Runs two sides that have connections with all kinds of configurations, messages of 0 B to 8 MiB
/// both ways, some kept for a while, received by recv, select! and try_recv; connections that are
/// closed, dropped and aborted, also while the other side sends, each followed by the next one.
///
/// Every byte is checked, and when a connection has ended the two sides compare their books: after
/// a graceful close exactly what was sent must have been received, after an abort an unbroken first
/// part of it. At the end nothing may be left behind: RDMA resources, file descriptors, pinned and
/// resident memory are as at the start, and no receiver was ever without a receive (RNR NAK). Ends
/// 0 only then. Whatever hangs is shown and ends it.
#[derive(Parser)]
#[command(
    name = "integration/soak",
    bin_name = "integration/soak",
    verbatim_doc_comment
)]
struct Options {
    /// How long to go on making connections, fractions allowed
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// What decides everything that is random; it is printed [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many connections there are at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    endpoints: u64,
    /// On how many hosts the two sides run
    #[arg(long, value_name = "1|2", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,
    /// The same as --hosts 1
    #[arg(long, conflicts_with = "hosts")]
    one_host: bool,
    /// The driver of the devices of virtual machines, which the hosts are then in any case
    #[arg(long, value_name = "DRIVER", value_enum)]
    device: Option<LabDevice>,
    /// Be the server, which learns from the client what it is to be
    #[arg(long, hide = true)]
    server: bool,
}

/// More than nothing and less than a month.
fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if minutes > 0.0 && minutes < 43_200.0 => Ok(minutes),
        _ => Err("a number of minutes above 0 and below 43200 is needed".into()),
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    if !Lab::is_here() {
        return Err(launch(options)?);
    }
    let alone = options.hosts == 1 || options.one_host;
    if options.server || (!alone && Lab::find()?.host == "a") {
        return Soak::run(Side::Server, None);
    }
    let settings = Settings {
        seed: options.seed.unwrap_or_else(|| fastrand::u64(..)),
        endpoints: options.endpoints,
        duration: Duration::from_secs_f64(options.minutes * 60.0),
    };
    println!(
        "soak: {} endpoints at a time for {} min, seed {}",
        settings.endpoints, options.minutes, settings.seed
    );
    if !alone {
        return Soak::run(Side::Client, Some(settings));
    }
    let mut server = Command::new(env::current_exe()?).arg("--server").spawn()?;
    let outcome = Soak::run(Side::Client, Some(settings));
    let status = server.wait()?;
    outcome?;
    ensure!(status.success(), "the server ended: {status}");
    Ok(())
}

fn launch(options: &Options) -> Result<anyhow::Error> {
    let hosts = if options.one_host { 1 } else { options.hosts };
    // The last connections begin when the time is over, and the soak ends itself when one hangs.
    let limit = Duration::from_secs_f64(options.minutes * 60.0) + Duration::from_secs(600);
    let mut launch = Launch::new(hosts, limit)
        .option("--memory", "2G")
        // So that resident memory is what is in use, and not what the allocator keeps for later.
        .option("--env", "MALLOC_MMAP_THRESHOLD_=131072")
        .option("--env", "MALLOC_ARENA_MAX=2")
        .argument(format!("--minutes={}", options.minutes))
        .argument(format!("--endpoints={}", options.endpoints))
        .argument(format!("--hosts={hosts}"));
    launch = match options.device {
        Some(device) => launch.device(device),
        None => launch.native_where_possible()?,
    };
    if let Some(seed) = options.seed {
        launch = launch.argument(format!("--seed={seed}"));
    }
    Ok(launch.exec())
}
