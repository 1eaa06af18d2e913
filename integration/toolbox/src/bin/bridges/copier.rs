//! A program that only copies bytes between two TCP connections, in both directions.

use std::{net::SocketAddr, thread};

use anyhow::{Context, Result, bail};
use toolbox::{Line, Process, Proxy, TIME_LIMIT};

/// The text that the copier prints before its address when it listens.
const LISTENS: &str = "listening on ";

/// Starts this program as a copier that forwards to `target`. Returns the process, and the address
/// on which the copier listens.
pub(crate) fn start(target: SocketAddr) -> Result<(Process, SocketAddr)> {
    let program = std::env::current_exe()?;
    let argv = [
        &*program.to_string_lossy(),
        "--copy-to",
        &target.to_string(),
    ];
    let mut process = Process::start(&argv)?;
    let line = match process.line(TIME_LIMIT) {
        Some(Line::Out(line)) => line,
        Some(Line::Err(_)) | None => bail!("{}", process.finish(TIME_LIMIT)?),
    };
    let address = line
        .strip_prefix(LISTENS)
        .context("the copier does not listen")?;
    Ok((process, address.parse()?))
}

/// Prints the address on which the copier listens. Connects to `target` for each accepted
/// connection, and copies the bytes between the two connections. Runs until the process is killed.
pub(crate) fn run(target: SocketAddr) -> Result<()> {
    println!("{LISTENS}{}", Proxy::start(target)?.address);
    loop {
        thread::park();
    }
}
