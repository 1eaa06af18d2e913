//! The main job: a server and a client exchange messages over RoCE.

use std::{
    env,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Error, Result};
use clap::Parser;
use toolbox::{Lab, Launch};

/// A server and a client that exchange messages over RoCE
///
/// Runs cm_server and cm_client on two hosts: on a local RDMA device where there is one, otherwise
/// on two small virtual machines with a wire between them.
///
/// Shows each step of the connection manager with its time, what the two sides negotiated, 1000
/// messages of 64 B, 4 KiB and 64 KiB each way, every byte checked, round trip percentiles, and the
/// end of the connection. Ends 0 if all of it worked.
#[derive(Parser)]
#[command(
    name = "integration/demo",
    bin_name = "integration/demo",
    verbatim_doc_comment
)]
struct Options {}

fn main() -> ExitCode {
    Options::parse();
    let error = play().unwrap_or_else(|error| error);
    eprintln!("demo: {error:#}");
    ExitCode::FAILURE
}

/// Becomes the lab, and in the lab one of the examples.
fn play() -> Result<Error> {
    if !Lab::is_here() {
        let launch = Launch::new(2, Duration::from_secs(240)).native_where_possible()?;
        return Ok(launch.exec());
    }
    let lab = Lab::find()?;
    let (name, line) = if lab.host == "a" {
        ("cm_server", format!("--connections 1 {}", lab.at(7471)))
    } else {
        let peer = lab.peer_at(7471);
        let line = format!("--timeout 60 --size 64,4096,65536 --count 1000 {peer}");
        ("cm_client", line)
    };
    let program = env::current_exe()?.with_file_name(name);
    let error = Command::new(&program).args(line.split(' ')).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
