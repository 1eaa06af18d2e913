use std::{
    io::{self, Write},
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use super::{
    options::{Options, Order},
    reading::{Connection, Key, Reading},
};
use crate::measure::bytes_per_second;

/// What is shown: rates between two readings.
#[derive(Debug)]
pub(super) struct View {
    rows: Vec<Row>,
    processes: usize,
}

/// A connection, a second of it.
#[derive(Debug)]
struct Row {
    key: Key,
    of: Connection,
    sent: f64,
    received: f64,
    messages: f64,
    stalls: f64,
}

impl View {
    pub(super) fn new(before: &Reading, now: &Reading, options: &Options) -> Self {
        Self::sorted(before, now, options.sort)
    }

    fn sorted(before: &Reading, now: &Reading, order: Order) -> Self {
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let none = Connection::default();
        let rows = now.connections.iter().map(|(key, of)| {
            let old = before.connections.get(key).unwrap_or(&none);
            // What began in between did all of it in that time.
            let rate = |now: f64, old: f64| (now - old).max(0.0) / seconds.max(1e-3);
            Row {
                sent: rate(of.sent, old.sent),
                received: rate(of.received, old.received),
                messages: rate(of.messages, old.messages),
                stalls: rate(of.stalls, old.stalls),
                key: key.clone(),
                of: of.clone(),
            }
        });
        let mut rows: Vec<Row> = rows.collect();
        let by = |row: &Row| match order {
            Order::Bytes => row.sent + row.received,
            Order::Messages => row.messages,
            Order::Stalls => row.stalls,
            Order::Held => row.of.held,
            Order::Age => row.of.age.as_secs_f64(),
        };
        // The most first; the same always in the same order.
        rows.sort_by(|one, other| by(other).total_cmp(&by(one)).then(one.key.cmp(&other.key)));
        Self {
            rows,
            processes: now.processes,
        }
    }

    fn sum(&self, of: impl Fn(&Row) -> f64) -> f64 {
        // The sum of none is negative zero.
        self.rows.iter().map(of).sum::<f64>().abs()
    }

    pub(super) fn to_json(&self) -> Value {
        let connections: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "pid": row.key.pid,
                    "command": row.of.command,
                    "connection": row.key.connection,
                    "peer": row.of.peer,
                    "transport": row.of.transport,
                    "age_seconds": row.of.age.as_secs_f64(),
                    "sent_bytes_per_second": row.sent,
                    "received_bytes_per_second": row.received,
                    "messages_per_second": row.messages,
                    "stalls_per_second": row.stalls,
                    "buffers_held": row.of.held,
                    "sent_bytes": row.of.sent,
                    "received_bytes": row.of.received,
                    "messages": row.of.messages,
                })
            })
            .collect();
        json!({"processes": self.processes, "connections": connections})
    }

    /// As many rows as there are lines.
    pub(super) fn write(
        &self,
        out: &mut impl Write,
        width: usize,
        lines: Option<usize>,
    ) -> io::Result<()> {
        let (bold, dim) = (Style::new().bold(), Style::new().invert());
        let plural = |number: usize, one: &str, more: &str| match number {
            1 => format!("1 {one}"),
            _ => format!("{number} {more}"),
        };
        writeln!(
            out,
            "{bold}{} of {}{bold:#}: {} out, {} in, {:.0} messages/s",
            plural(self.rows.len(), "connection", "connections"),
            plural(self.processes, "process", "processes"),
            bytes_per_second(self.sum(|row| row.sent)),
            bytes_per_second(self.sum(|row| row.received)),
            self.sum(|row| row.messages),
        )?;
        if self.processes == 0 {
            writeln!(
                out,
                "\nNo process exports its statistics. A program does if it keeps an \
                 rdmsg::observe::Export;\n`rdmsg serve --statistics` and `rdmsg bridge \
                 --statistics` do."
            )?;
            return Ok(());
        }
        let head = format!(
            "{:>7} {:<12} {:>6} {:<23} {:<4} {:>6} {:>10} {:>10} {:>8} {:>7} {:>5}",
            "PID", "COMMAND", "CONN", "PEER", "OVER", "AGE", "OUT", "IN", "MSG/S", "STALLS", "HELD"
        );
        let fit = |text: &str| text.chars().take(width).collect::<String>();
        writeln!(out, "{dim}{}{dim:#}", fit(&head))?;
        let most = lines.map_or(usize::MAX, |lines| lines.saturating_sub(4));
        for row in self.rows.iter().take(most) {
            let Row { key, of, .. } = row;
            let text = format!(
                "{:>7} {:<12} {:>6} {:<23} {:<4} {:>6} {:>10} {:>10} {:>8.0} {:>7.0} {:>5.0}",
                key.pid,
                of.command.chars().take(12).collect::<String>(),
                key.connection,
                of.peer,
                of.transport,
                age(of.age),
                bytes_per_second(row.sent),
                bytes_per_second(row.received),
                row.messages,
                row.stalls,
                of.held,
            );
            let style = if row.stalls >= 1.0 {
                AnsiColor::Yellow.on_default()
            } else {
                Style::new()
            };
            writeln!(out, "{style}{}{style:#}", fit(&text))?;
        }
        if self.rows.len() > most {
            writeln!(out, "… and {} more", self.rows.len() - most)?;
        }
        Ok(())
    }
}

/// In two digits and a unit.
fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..100 => format!("{seconds}s"),
        seconds @ 100..6_000 => format!("{}m", seconds / 60),
        seconds @ 6_000..360_000 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{super::reading::testing::reading, *};

    #[test]
    fn rates_are_between_two_readings() {
        let start = Instant::now();
        let (before, now) = (reading(start, 1, 1000), reading(start, 3, 5000));
        let view = View::sorted(&before, &now, Order::Bytes);
        let json = view.to_json();
        let row = &json["connections"][0];
        assert_eq!(row["sent_bytes_per_second"], 2000.0);
        assert_eq!(row["messages_per_second"], 20.0);
        assert_eq!(row["received_bytes_per_second"], 0.0);
        let mut out = Vec::new();
        view.write(&mut out, 120, Some(24)).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string();
        assert!(
            text.starts_with("1 connection of 1 process: 2.00 kB/s out"),
            "{text}"
        );
        assert!(text.contains("10.8.0.1:7471"), "{text}");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let start = Instant::now();
        let (before, now) = (reading(start, 1, 0), reading(start, 2, 0));
        let view = View::sorted(&before, &now, Order::Held);
        let mut out = Vec::new();
        view.write(&mut out, 40, Some(4)).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string();
        assert!(text.ends_with("… and 1 more\n"), "{text}");
        assert_eq!(age(Duration::from_secs(99)), "99s");
        assert_eq!(age(Duration::from_secs(7200)), "2h");
    }
}
