//! Limits the rate of log lines. A peer or the network can trigger some lines arbitrarily often.

use std::{
    fmt,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::lock;

/// The minimum time between two log lines that share a limit.
const PERIOD: Duration = Duration::from_secs(1);

/// A rate limit that lets one log line per second pass and counts the suppressed lines, so that a
/// peer cannot fill the log.
#[derive(Debug)]
pub struct LogLimit(Mutex<Recent>);

#[derive(Debug)]
struct Recent {
    /// The time of the last line that passed.
    last_passed: Option<Instant>,
    /// The number of lines that have been suppressed since the last line that passed.
    suppressed: u64,
}

/// The number of lines that were suppressed between the previous line that passed and the current
/// line. Its `Display` text is appended to the current line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuppressedLines(u64);

impl Default for LogLimit {
    /// Creates a limit that lets the first line pass.
    fn default() -> Self {
        let recent = Recent {
            last_passed: None,
            suppressed: 0,
        };
        Self(Mutex::new(recent))
    }
}

impl LogLimit {
    /// Decides whether a line passes at the time `now`. If the line passes, returns the number of
    /// lines that were suppressed before it. Otherwise, counts the line as suppressed and returns
    /// `None`.
    pub fn pass(&self, now: Instant) -> Option<SuppressedLines> {
        let mut recent = lock(&self.0);
        let is_early = |passed| now.saturating_duration_since(passed) < PERIOD;
        if recent.last_passed.is_some_and(is_early) {
            recent.suppressed += 1;
            return None;
        }
        recent.last_passed = Some(now);
        Some(SuppressedLines(std::mem::take(&mut recent.suppressed)))
    }
}

impl fmt::Display for SuppressedLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" (1 such line was suppressed)"),
            others => write!(f, " ({others} such lines were suppressed)"),
        }
    }
}

/// Defines macros that log at most one line per second for each call site.
macro_rules! sparse {
    ($dollar:tt $($name:ident $level:ident $log:ident),*) => { $(
        /// Logs at most one line per second for each call site. If lines were suppressed, the next
        /// line that is logged ends with their number.
        #[doc = concat!("[`foreign::", stringify!($log), "`](crate::foreign::", stringify!($log),
            ") logs it.")]
        #[macro_export]
        macro_rules! $name {
            ($dollar target:ident, $dollar($dollar text:tt)+) => {{
                static LIMIT: $crate::PerProcess<$crate::LogLimit> =
                    $crate::PerProcess::new($crate::LogLimit::default);
                if let Some(others) = LIMIT.get().pass(::std::time::Instant::now()) {
                    $crate::foreign::$log(
                        $crate::foreign::Level::$level,
                        $crate::foreign::Target::$dollar target,
                        format_args!("{}{others}", format_args!($dollar($dollar text)+)),
                    );
                }
            }};
        }
    )* };
}

sparse!(
    $ error_sparsely Error log, warn_sparsely Warn log, info_sparsely Info log,
    error_elsewhere Error log_elsewhere
);

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
            " (3 such lines were suppressed)"
        );
    }
}
