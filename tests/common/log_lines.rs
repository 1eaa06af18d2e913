//! Collects the log lines of a test program, and checks each line against the contract in
//! [`targets`].

use std::{
    fmt::Write,
    sync::{Condvar, Mutex, Once},
};

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::TIME_LIMIT;

pub mod targets;

/// All log lines since the first call of [`collect`](Self::collect).
#[derive(Debug)]
pub struct Lines {
    lines: Mutex<Vec<(Level, String)>>,
    added: Condvar,
}

static LINES: Lines = Lines {
    lines: Mutex::new(Vec::new()),
    added: Condvar::new(),
};

impl Lines {
    /// Installs a logger that collects the log lines of this process at all levels, and returns it.
    /// Later calls return the same logger.
    pub fn collect() -> &'static Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            log::set_logger(&LINES).unwrap();
            log::set_max_level(LevelFilter::Trace);
        });
        &LINES
    }

    /// Returns the number of lines that contain `text`.
    pub fn count(&self, text: &str) -> usize {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(_, line)| line.contains(text)).count()
    }

    /// Returns the level of the first line that contains `text`.
    pub fn level_of(&self, text: &str) -> Option<Level> {
        let lines = self.lines.lock().unwrap();
        let mut found = lines.iter().filter(|(_, line)| line.contains(text));
        found.next().map(|(level, _)| *level)
    }

    /// Waits until a line contains `text`.
    pub fn wait_for(&self, text: &str) {
        self.wait_for_count(text, 1);
    }

    /// Waits until at least `count` lines contain `text`. Then asserts that no line has violated
    /// the contract.
    pub fn wait_for_count(&self, text: &str, count: usize) {
        let found = |lines: &mut Vec<(Level, String)>| {
            lines.iter().filter(|(_, line)| line.contains(text)).count() >= count
        };
        let lines = self.lines.lock().unwrap();
        let waited = self
            .added
            .wait_timeout_while(lines, TIME_LIMIT, |lines| !found(lines));
        let is_over = waited.unwrap().1.timed_out();
        assert!(!is_over, "too few log lines contain: {text}");
        targets::assert_no_violation();
    }

    /// Asserts that no line contains the first four bytes of a secret as decimal numbers, as
    /// hexadecimal digits or as text.
    pub fn assert_not_logged(&self, secret: &[u8]) {
        let secret = &secret[..4];
        let decimal = format!("{secret:?}");
        let mut hex = String::new();
        for byte in secret {
            write!(hex, "{byte:02x}").unwrap();
        }
        let text = String::from_utf8_lossy(secret);
        for (_, line) in &*self.lines.lock().unwrap() {
            for form in [decimal.trim_matches(['[', ']']), &hex, &text] {
                assert!(!line.to_lowercase().contains(form), "{line}");
            }
        }
    }
}

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        targets::record_violation(record);
        let line = record.args().to_string();
        self.lines.lock().unwrap().push((record.level(), line));
        self.added.notify_all();
    }

    fn flush(&self) {}
}
