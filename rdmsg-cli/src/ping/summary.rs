use std::io::{self, Write};

use anstyle::AnsiColor;
use serde::Serialize;

use crate::{
    measure::{self, Bucket, Size, Times, micros},
    terminal,
};

/// The results of one run of `rdmsg ping`.
#[derive(Debug)]
pub(super) struct Summary {
    peer: String,
    size: Size,
    pub(super) transport: String,
    pub(super) sent: u64,
    pub(super) connections_lost: u64,
    pub(super) resumes: u64,
    pub(super) times: Times,
}

impl Summary {
    pub(super) fn new(peer: &str, size: Size) -> Self {
        Self {
            peer: peer.into(),
            size,
            transport: String::new(),
            sent: 0,
            connections_lost: 0,
            resumes: 0,
            times: Times::new(),
        }
    }

    /// Returns true if all replies arrived and no connection was lost. A connection that was
    /// resumed does not count as lost.
    pub(super) fn is_whole(&self) -> bool {
        self.connections_lost == 0 && self.times.count() == self.sent
    }

    pub(super) fn print_json(&self) -> io::Result<()> {
        #[derive(Serialize)]
        struct Json<'a> {
            peer: &'a str,
            transport: &'a str,
            size: u64,
            sent: u64,
            came_back: u64,
            connections_lost: u64,
            resumes: u64,
            round_trip_us: Option<measure::Summary>,
            histogram: Vec<Bucket>,
        }
        let json = Json {
            peer: &self.peer,
            transport: &self.transport,
            size: self.size.0,
            sent: self.sent,
            came_back: self.times.count(),
            connections_lost: self.connections_lost,
            resumes: self.resumes,
            round_trip_us: self.times.summary(),
            histogram: self.times.buckets(),
        };
        let json = serde_json::to_string_pretty(&json)?;
        writeln!(io::stdout(), "{json}")
    }

    pub(super) fn print_text(&self, histogram: bool) -> io::Result<()> {
        let mut out = terminal::stdout();
        let (sent, back) = (self.sent, self.times.count());
        let style = if self.is_whole() {
            AnsiColor::Green.on_default()
        } else {
            AnsiColor::Red.on_default().bold()
        };
        let lost = match self.connections_lost {
            0 => "no connection lost".to_owned(),
            1 => "1 connection lost".to_owned(),
            number => format!("{number} connections lost"),
        };
        let resumed = match self.resumes {
            0 => String::new(),
            1 => ", resumed once".to_owned(),
            number => format!(", resumed {number} times"),
        };
        writeln!(
            out,
            "\n{style}{sent} messages sent, {back} came back, {lost}{resumed}{style:#}"
        )?;
        let Some(of) = self.times.summary() else {
            return Ok(());
        };
        writeln!(
            out,
            "round trip over {}: median {}, 99 % within {}, from {} to {}",
            self.transport,
            micros(of.median),
            micros(of.p99),
            micros(of.least),
            micros(of.most)
        )?;
        if histogram && back > 1 {
            self.write_histogram(&mut out)?;
        }
        Ok(())
    }

    fn write_histogram(&self, out: &mut impl Write) -> io::Result<()> {
        let buckets = self.times.buckets();
        let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(1);
        let room = terminal::width().saturating_sub(34).min(60);
        let bars = AnsiColor::Cyan.on_default();
        for bucket in &buckets {
            let (from, to) = (micros(bucket.from), micros(bucket.to));
            let bar = bar(bucket.count, most, room);
            writeln!(
                out,
                "{from:>9} – {to:>9} {:>8}  {bars}{bar}{bars:#}",
                bucket.count
            )?;
        }
        Ok(())
    }
}

/// Returns a bar whose length is proportional to `count`, in steps of one eighth of a character.
/// The bar for `most` has `room` characters. The bar for a `count` above 0 is at least one eighth
/// of a character long.
fn bar(count: u64, most: u64, room: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = count as u128 * room as u128 * 8 / u128::from(most.max(1));
    let eighths = (eighths as usize).max(usize::from(count > 0));
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_proportional() {
        assert_eq!(bar(0, 10, 4), "");
        assert_eq!(bar(10, 10, 4), "████");
        assert_eq!(bar(5, 10, 3), "█▌");
        assert_eq!(
            bar(1, 1_000_000, 4),
            "▏",
            "a count above 0 must have a visible bar"
        );
        assert_eq!(bar(u64::MAX, u64::MAX, 2), "██");
    }
}
