//! `rdmsg top`: a table of the connections of all processes that export their statistics. The
//! command updates the table at a fixed interval.
//!
//! ```text
//! options     the command line             sources   finds the sockets, and reads from them
//! exposition  parses the Prometheus text   reading   the counters of all connections at one moment
//! view        the rates between two readings, as a table or JSON
//! keys        the keys that end or pause the display
//! ```

mod exposition;
mod keys;
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
use self::{
    keys::{Keys, Waited},
    reading::Reading,
    view::View,
};
use crate::{process::Stop, terminal};

/// The control sequences that move the cursor to the top left corner and clear the screen.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// The control sequences that enter the alternate screen and hide the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// The control sequences that show the cursor and leave the alternate screen.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The last line of the screen while the display is not paused.
const HELP: &str = "q quits, any other key pauses";
/// The last line of the screen while the display is paused.
const PAUSED: &str = "paused: q quits, any other key continues";

/// Shows the connections until a signal arrives or the user presses `q`. With `--once`, shows the
/// connections only once.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let stop = Stop::install().context("cannot handle signals")?;
    let is_live = terminal::is_live() && !options.once && !options.json;
    if is_live {
        print!("{ENTER}");
    }
    let keys = Keys::read(is_live);
    let ended = show(options, &stop, &keys, is_live);
    drop(keys);
    if is_live {
        print!("{LEAVE}");
        io::stdout().flush()?;
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn show(options: &Options, stop: &Stop, keys: &Keys, is_live: bool) -> Result<()> {
    let mut before = Reading::take(options);
    loop {
        match keys.wait(Some(options.interval), stop) {
            Waited::TimePassed => {}
            Waited::Quit => return Ok(()),
            Waited::Key => {
                print!("\r{PAUSED}\x1b[K");
                io::stdout().flush()?;
                if keys.wait(None, stop) == Waited::Quit {
                    return Ok(());
                }
                print!("\r{HELP}\x1b[K");
                io::stdout().flush()?;
                // Take a new first reading, so that the next rates do not include the pause.
                before = Reading::take(options);
                continue;
            }
        }
        let now = Reading::take(options);
        let view = View::new(&before, &now, options);
        if is_live {
            // Use `print!`, because `terminal::stdout` removes control sequences if, for example,
            // `NO_COLOR` is set.
            print!("{CLEAR_SCREEN}");
            io::stdout().flush()?;
        }
        let mut out = terminal::stdout();
        if options.json {
            writeln!(out, "{}", view.to_json())?;
        } else {
            let lines = is_live.then(terminal::height);
            view.write(&mut out, terminal::width(), lines)?;
            if keys.are_read() {
                write!(out, "{HELP}")?;
            }
        }
        out.flush()?;
        if options.once {
            return Ok(());
        }
        before = now;
    }
}
