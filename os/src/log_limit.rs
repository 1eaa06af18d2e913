//! Limits the rate of log lines that a peer or the network can trigger.

use std::{
    fmt,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::lock;

/// The time between two lines of a kind.
const PERIOD: Duration = Duration::from_secs(1);

/// Passes at most one line of a kind per second, and counts the others, so that no peer can fill
/// the log.
#[derive(Debug)]
pub struct LogLimit(Mutex<Recent>);

#[derive(Debug)]
struct Recent {
    /// The time of the last line.
    passed: Option<Instant>,
    /// The number of lines that were suppressed since then.
    held: u64,
}

/// The number of lines that were suppressed before this one. Its text is appended to the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuppressedLines(u64);

impl Default for LogLimit {
    /// Creates a limit that no line has used.
    fn default() -> Self {
        let recent = Recent {
            passed: None,
            held: 0,
        };
        Self(Mutex::new(recent))
    }
}

impl LogLimit {
    /// Counts a line, and returns whether it passes.
    pub fn pass(&self, now: Instant) -> Option<SuppressedLines> {
        let mut recent = lock(&self.0);
        let is_early = |passed| now.saturating_duration_since(passed) < PERIOD;
        if recent.passed.is_some_and(is_early) {
            recent.held += 1;
            return None;
        }
        recent.passed = Some(now);
        Some(SuppressedLines(std::mem::take(&mut recent.held)))
    }
}

impl fmt::Display for SuppressedLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" (1 other since the last such line)"),
            others => write!(f, " ({others} others since the last such line)"),
        }
    }
}

/// Defines macros that log as those without `_sparsely`, and let one line in a second pass for each
/// call in the source. The caller holds no lock.
macro_rules! sparse {
    ($dollar:tt $($name:ident $level:ident),*) => { $(
        /// Logs at most one line a second for each call in the source, and counts the others.
        #[macro_export]
        macro_rules! $name {
            ($dollar target:ident, $dollar($dollar text:tt)+) => {{
                static LIMIT: $crate::PerProcess<$crate::LogLimit> =
                    $crate::PerProcess::new($crate::LogLimit::default);
                if let Some(others) = LIMIT.get().pass(::std::time::Instant::now()) {
                    $crate::foreign::log(
                        $crate::foreign::Level::$level,
                        $crate::foreign::Target::$dollar target,
                        format_args!("{}{others}", format_args!($dollar($dollar text)+)),
                    );
                }
            }};
        }
    )* };
}

sparse!($ error_sparsely Error, warn_sparsely Warn, info_sparsely Info);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_second_passes_and_others_are_counted() {
        let start = Instant::now();
        let limit = LogLimit::default();
        let millis = [0, 0, 1, 999, 1000, 1001, 60_000];
        let passed = millis.map(|ms| limit.pass(start + Duration::from_millis(ms)));
        let expected = [Some(0), None, None, None, Some(3), None, Some(1)];
        assert_eq!(passed, expected.map(|others| others.map(SuppressedLines)));
        assert_eq!(SuppressedLines(0).to_string(), "");
        assert_eq!(
            SuppressedLines(3).to_string(),
            " (3 others since the last such line)"
        );
    }
}
