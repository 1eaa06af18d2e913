use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use crate::terminal;

/// The time between two updates of a line; the eye follows no faster.
const PERIOD: Duration = Duration::from_millis(100);

/// Lines of a program that runs: some stay, and on a terminal the last one changes.
#[derive(Debug)]
pub(crate) struct Live {
    is_shown: bool,
    /// When the changing line was written last, if it is there.
    updated: Option<Instant>,
}

impl Live {
    /// A line that is not shown writes nothing.
    pub(crate) fn new(is_shown: bool) -> Self {
        Self {
            is_shown,
            updated: None,
        }
    }

    /// Writes a line that stays.
    pub(crate) fn line(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.clear()?;
        if self.is_shown {
            writeln!(anstream::stdout(), "{text}")?;
        }
        Ok(())
    }

    /// Updates the line if it is shown, and not too often.
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
        // A line that wraps could not be taken back.
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

    /// Writes the line that changes, at once.
    pub(crate) fn now(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.clear()?;
        self.update(|out| write!(out, "{text}"))
    }

    /// Takes the changing line back.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        if self.updated.take().is_some() {
            let mut out = io::stdout().lock();
            write!(out, "\r\x1b[K")?;
            out.flush()?;
        }
        Ok(())
    }
}
