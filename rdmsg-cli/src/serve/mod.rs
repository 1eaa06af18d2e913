//! `rdmsg serve`: the server for `rdmsg ping`, `rdmsg bench` and `rdmsg doctor` on other hosts.
//!
//! ```text
//! options   the command line
//! server    listens, and counts the open connections
//! session   one connection; the examination of this host, cached for 2 s
//! ```

mod options;
mod server;
mod session;

use std::process::ExitCode;

use anyhow::{Context, Result};

pub(crate) use self::options::Options;
use self::server::Server;
use crate::process::{Stop, export_statistics, raise_open_files};

/// Serves connections until a signal arrives.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let stop = Stop::install().context("cannot handle signals")?;
    raise_open_files();
    let _export = export_statistics(options.statistics)?;
    Server::start(options)?.run(&stop)
}
