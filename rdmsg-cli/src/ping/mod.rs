//! `rdmsg ping`: measures the round-trip times of messages.
//!
//! ```text
//! options   the command line
//! pinger    sends, waits, connects again     summary   what it came to
//! outages   losses of a connection that is resumed
//! ```

mod options;
mod outages;
mod pinger;
mod summary;

use std::process::ExitCode;

use anyhow::{Context, Result};

pub(crate) use self::options::Options;
use self::pinger::Pinger;
use crate::stop::Stop;

/// Sends messages until their number is reached or a signal arrives.
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
