//! `rdmsg top`: a table of the connections of all processes that export their statistics. The
//! command updates it at an interval.
//!
//! ```text
//! options     the command line             sources   finds the sockets, and reads from them
//! exposition  parses the Prometheus text   reading   the counters of all connections at one moment
//! view        the rates between two readings, as a table or JSON
//! ```

mod exposition;
mod options;
mod reading;
mod sources;
mod view;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};

pub(crate) use self::options::Options;
use self::{reading::Reading, view::View};
use crate::{stop::Stop, terminal};

/// The control sequences that move the cursor to the top left corner and clear the screen.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// The control sequences that switch to the terminal's alternate screen and hide the cursor, and
/// that undo both.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Shows the connections until a signal arrives, or once with `--once`.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let stop = Stop::install().context("cannot handle signals")?;
    let is_live = terminal::is_live() && !options.once && !options.json;
    if is_live {
        print!("{ENTER}");
    }
    let ended = show(options, &stop, is_live);
    if is_live {
        print!("{LEAVE}");
        io::stdout().flush()?;
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn show(options: &Options, stop: &Stop, is_live: bool) -> Result<()> {
    let mut before = Reading::take(options);
    loop {
        stop.wait(options.interval);
        if stop.is_requested() {
            return Ok(());
        }
        let now = Reading::take(options);
        let view = View::new(&before, &now, options);
        if is_live {
            // `anstream` removes this sequence if it removes colours, so `print!` writes it.
            print!("{CLEAR_SCREEN}");
            io::stdout().flush()?;
        }
        let mut out = anstream::stdout().lock();
        if options.json {
            writeln!(out, "{}", view.to_json())?;
        } else {
            let lines = is_live.then(terminal::height);
            view.write(&mut out, terminal::width(), lines)?;
        }
        out.flush()?;
        if options.once {
            return Ok(());
        }
        before = now;
    }
}
