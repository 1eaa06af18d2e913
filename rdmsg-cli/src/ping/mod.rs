//! `rdmsg ping` sends messages to a peer and measures their round-trip times.
//!
//! ```text
//! options   the command line
//! pinger    sends, waits, reconnects           summary   the statistics at the end
//! outages   detects and times the outages of a connection that can be resumed
//! ```

mod options;
mod outages;
mod pinger;
mod summary;

use std::process::ExitCode;

use anyhow::{Context, Result};

pub(crate) use self::options::Options;
use self::pinger::Pinger;
use crate::process::Stop;

/// Sends messages until the requested number is reached or a signal arrives. Then prints a summary.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let stop = Stop::install().context("cannot handle signals")?;
    let summary = Pinger::new(options)?.run(&stop)?;
    if options.json {
        summary.print_json()?;
    } else {
        summary.print_text(options.histogram)?;
    }
    Ok(if summary.is_whole() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
