//! `rdmsg top`: the connections of processes that export their statistics, as they change.
//!
//! ```text
//! options     the command line             sources   where sockets are, and what they say
//! exposition  the text that they send      reading   all connections at one moment
//! view        what is shown of two readings
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

/// Clears the screen, and begins above.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// The control sequences that switch to the terminal's alternate screen and hide the cursor, and
/// that undo both.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Shows the connections until a signal comes, or once.
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
            // Printed directly, because the stream that removes colours would remove this sequence
            // too.
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
