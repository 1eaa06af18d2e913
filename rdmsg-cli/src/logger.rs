//! The log of the command on stderr: a line for each record, with the time in UTC.

use std::{
    io::Write,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Installs the logger. The variable `RUST_LOG` selects the records, by default warnings and
/// errors.
pub(crate) fn install() {
    let level = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(level)
        .format(|out, record| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let style = out.default_level_style(record.level());
            writeln!(
                out,
                "[{} {style}{:<5}{style:#} {}] {}",
                utc(now.unwrap_or_default()),
                record.level(),
                record.target(),
                record.args()
            )
        })
        .init();
}

/// Formats a time since 1970 as `2026-11-27T04:20:00Z`.
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
