use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use crate::terminal;

/// The minimum time between two updates of the status line. The eye cannot follow faster updates.
const PERIOD: Duration = Duration::from_millis(100);

/// The output of a running program: permanent lines and, on a terminal, a status line below them.
#[derive(Debug)]
pub(crate) struct Live {
    is_shown: bool,
    /// The time of the last update, or `None` if the terminal shows no status line.
    updated: Option<Instant>,
}

impl Live {
    /// Creates an output. If `is_shown` is false, the output writes nothing to stdout.
    pub(crate) fn new(is_shown: bool) -> Self {
        Self {
            is_shown,
            updated: None,
        }
    }

    /// Writes a permanent line.
    pub(crate) fn line(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.clear()?;
        if self.is_shown {
            writeln!(terminal::stdout(), "{text}")?;
        }
        Ok(())
    }

    /// Updates the status line. Does nothing if the output is hidden, if stdout is not a terminal,
    /// or if the status line was updated less than `PERIOD` ago.
    pub(crate) fn update(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let is_late = self.updated.is_none_or(|at| at.elapsed() >= PERIOD);
        if !self.is_shown || !is_late || !terminal::is_live() {
            return Ok(());
        }
        let mut text = Vec::new();
        write(&mut text)?;
        // Limit the line to one character less than the terminal width. If the terminal wrapped the
        // line, the next update could not remove it.
        let text: String = String::from_utf8_lossy(&text)
            .chars()
            .take(terminal::width() - 1)
            .collect();
        let mut out = io::stdout().lock();
        write!(out, "\r\x1b[K{text}")?;
        out.flush()?;
        self.updated = Some(Instant::now());
        Ok(())
    }

    /// Shows the current step of the program immediately: in the status line, or as a line on
    /// stderr if stdout is not a terminal.
    pub(crate) fn now(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        if !terminal::is_live() {
            // Ignore a write error, because the results do not depend on this line.
            let _ = writeln!(io::stderr(), "{text}");
            return Ok(());
        }
        self.clear()?;
        self.update(|out| write!(out, "{text}"))
    }

    /// Removes the status line from the terminal.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        if self.updated.take().is_some() {
            let mut out = io::stdout().lock();
            write!(out, "\r\x1b[K")?;
            out.flush()?;
        }
        Ok(())
    }
}
