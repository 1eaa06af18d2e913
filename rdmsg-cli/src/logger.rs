//! The logger of the command. It writes each record as a line to stderr, with the time in UTC.

use std::{
    env,
    io::Write,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anstyle::{AnsiColor, Style};
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::terminal;

/// Installs the logger. The environment variable `RUST_LOG` selects the records. Its value is a
/// comma-separated list of levels, module names and `MODULE=LEVEL` pairs. The default is `warn`.
pub(crate) fn install() {
    let logger = Logger::new(&env::var("RUST_LOG").unwrap_or_else(|_| "warn".into()));
    let most = logger.levels.iter().map(|(_, level)| *level).max();
    log::set_max_level(most.unwrap_or(LevelFilter::Off));
    // The call cannot fail, because no other logger is installed.
    let _ = log::set_logger(Box::leak(Box::new(logger)));
}

#[derive(Debug)]
struct Logger {
    /// Prefixes of module names with their levels, longer prefixes first.
    levels: Vec<(String, LevelFilter)>,
}

impl Logger {
    /// Creates a logger from a text in the format of `RUST_LOG`. Reports and ignores invalid parts.
    fn new(text: &str) -> Self {
        let parts = text.split(',').map(str::trim).filter(|it| !it.is_empty());
        let mut levels: Vec<(String, LevelFilter)> = parts
            .filter_map(|part| match part.split_once('=') {
                Some((module, level)) => match level.parse() {
                    Ok(level) => Some((module.to_owned(), level)),
                    Err(_) => {
                        eprintln!("rdmsg: ignoring the unknown level {level:?} in RUST_LOG");
                        None
                    }
                },
                None => Some(match part.parse() {
                    Ok(level) => (String::new(), level),
                    Err(_) => (part.to_owned(), LevelFilter::Trace),
                }),
            })
            .collect();
        if levels.is_empty() {
            levels.push((String::new(), LevelFilter::Error));
        }
        // A later part overrides an earlier part for the same module.
        levels.reverse();
        levels.sort_by_key(|(module, _)| std::cmp::Reverse(module.len()));
        Self { levels }
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let mut levels = self.levels.iter();
        let level = levels.find(|(module, _)| metadata.target().starts_with(module));
        level.is_some_and(|(_, level)| metadata.level() <= *level)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let style = match record.level() {
            Level::Error => AnsiColor::Red.on_default().bold(),
            Level::Warn => AnsiColor::Yellow.on_default(),
            Level::Info => AnsiColor::Green.on_default(),
            Level::Debug => AnsiColor::Blue.on_default(),
            Level::Trace => Style::new(),
        };
        // Use one write, so that other threads and processes cannot write into the line.
        let line = format!(
            "[{} {style}{:<5}{style:#} {}] {}\n",
            utc(now.unwrap_or_default()),
            record.level(),
            record.target(),
            record.args()
        );
        let _ = terminal::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// Formats a time since the Unix epoch as `2026-11-27T04:20:00Z`.
fn utc(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let day = days + 1;
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_module_decides_the_level() {
        let is_on = |text: &str, target: &str, level| {
            let metadata = Metadata::builder().target(target).level(level).build();
            Logger::new(text).enabled(&metadata)
        };
        for (text, target, level, expected) in [
            ("", "rdmsg", Level::Error, true),
            ("", "rdmsg", Level::Warn, false),
            ("info", "rdmsg::engine", Level::Info, true),
            ("info", "rdmsg::engine", Level::Debug, false),
            ("warn, rdmsg=debug", "rdmsg::engine", Level::Debug, true),
            ("rdmsg=debug,warn", "mio", Level::Info, false),
            (
                "rdmsg::link=off,rdmsg=info",
                "rdmsg::link",
                Level::Error,
                false,
            ),
            ("rdmsg::link", "rdmsg::link", Level::Trace, true),
            ("rdmsg::link", "rdmsg", Level::Error, false),
            ("rdmsg=loud,info", "rdmsg", Level::Info, true),
            ("info,debug", "rdmsg", Level::Debug, true),
        ] {
            assert_eq!(
                is_on(text, target, level),
                expected,
                "{text} {target} {level}"
            );
        }
    }

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds)), text);
        }
    }
}
