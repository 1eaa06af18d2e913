//! The main job: a server and a client exchange messages over RoCE.

use std::{
    env,
    os::unix::process::CommandExt,
    process::{Command, ExitCode, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Error, Result, ensure};
use clap::Parser;
use toolbox::{Lab, Launch};

/// A server and a client that exchange messages over RoCE
///
/// Runs cm_server and cm_client on two hosts: on a local RDMA device where there is one, otherwise
/// on two small virtual machines with a wire between them.
///
/// Says how long it took until the first message came back, with what had to be installed and
/// built. Then shows each step of the connection manager with its time, what the two sides
/// negotiated, 1000 messages of 64 B, 4 KiB and 64 KiB each way, every byte checked, round trip
/// percentiles, and the end of the connection. Ends 0 if all of it worked.
///
/// It is built to be there soon, not to be fast: for that there is integration/bench.
#[derive(Parser)]
#[command(
    name = "integration/demo",
    bin_name = "integration/demo",
    verbatim_doc_comment
)]
struct Options {}

/// The variable with the time at which the command was typed, in seconds since 1970.
const BEGAN: &str = "DEMO_BEGAN";

fn main() -> ExitCode {
    Options::parse();
    let error = play().unwrap_or_else(|error| error);
    eprintln!("demo: {error:#}");
    ExitCode::FAILURE
}

/// Becomes the lab, and in the lab one of the examples.
fn play() -> Result<Error> {
    if !Lab::is_here() {
        let began = format!("{BEGAN}={}", env::var(BEGAN).unwrap_or_default());
        let launch = Launch::new(2, Duration::from_secs(240))
            .option("--env", &began)
            .native_where_possible()?;
        return Ok(launch.exec());
    }
    let lab = Lab::find()?;
    if lab.host == "a" {
        let mut server = example("cm_server", &format!("--connections 2 {}", lab.at(7471)))?;
        return Ok(server.exec().into());
    }
    let peer = lab.peer_at(7471);
    let mut first = example(
        "cm_client",
        &format!("--timeout 60 --size 64 --count 1 {peer}"),
    )?;
    let first = first
        .env("RUST_LOG", "off")
        .stdout(Stdio::null())
        .status()?;
    ensure!(first.success(), "the first message: {first}");
    if let Some(took) = since_it_began() {
        println!("demo: the first message came back over RoCE {took} s after the command began");
    }
    let line = format!("--timeout 60 --size 64,4096,65536 --count 1000 {peer}");
    Ok(example("cm_client", &line)?.exec().into())
}

/// One of the examples, with these arguments.
fn example(name: &str, line: &str) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?.with_file_name(name));
    command.args(line.split(' '));
    Ok(command)
}

/// The seconds since the command was typed: all of it, with what had to be installed and built.
fn since_it_began() -> Option<u64> {
    let began: u64 = env::var(BEGAN).ok()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    now.as_secs().checked_sub(began)
}
