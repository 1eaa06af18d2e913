//! `rdmsg serve`: the server for ping, bench and the doctor of another host.
//!
//! ```text
//! options   the command line      server   listens, and counts who is there
//! session   one connection        reports  what this host finds out about itself, not too often
//! ```

mod options;
mod reports;
mod server;
mod session;

use std::process::ExitCode;

use anyhow::{Context, Result};

pub(crate) use self::options::Options;
use self::server::Server;
use crate::{open_files::raise_open_files, statistics::export, stop::Stop};

/// Serves until a signal ends it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let stop = Stop::install().context("cannot handle signals")?;
    raise_open_files();
    let _export = export(options.statistics)?;
    Server::start(options)?.run(&stop)
}
