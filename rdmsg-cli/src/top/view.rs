use std::{
    cmp::Reverse,
    collections::BTreeMap,
    io::{self, Write},
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::{
    options::{Options, Order},
    reading::{Connection, Key, Reading, RoundTrips, SUSPENDED},
};
use crate::measure::{bytes_per_second, micros};

/// The table of connections, with rates computed from two readings.
#[derive(Debug)]
pub(super) struct View {
    rows: Vec<Row>,
    processes: usize,
    round_trips: RoundTrips,
    /// The number of ended connections for each reason, the largest number first.
    ended: Vec<(String, u64)>,
}

/// A row of the table: a connection and its rates per second.
#[derive(Debug)]
struct Row {
    key: Key,
    of: Connection,
    sent: f64,
    received: f64,
    messages: f64,
    stalls: f64,
}

/// The JSON output. Its members are printed in this order.
#[derive(Serialize)]
struct ViewJson<'a> {
    processes: usize,
    round_trips: RoundTripsJson,
    ended: BTreeMap<&'a str, u64>,
    connections: Vec<ConnectionJson<'a>>,
}

#[derive(Serialize)]
struct RoundTripsJson {
    count: u64,
    mean_us: Option<f64>,
    p99_within_us: Option<u64>,
}

#[derive(Serialize)]
struct ConnectionJson<'a> {
    pid: u32,
    command: &'a str,
    connection: u64,
    label: &'a str,
    peer: &'a str,
    transport: &'a str,
    state: &'a str,
    age_seconds: f64,
    sent_bytes_per_second: f64,
    received_bytes_per_second: f64,
    messages_per_second: f64,
    stalls_per_second: f64,
    buffers_held: f64,
    resumes: f64,
    resent: f64,
    sent_bytes: f64,
    received_bytes: f64,
    messages: f64,
}

/// A column of the table.
#[derive(Clone, Copy, Debug)]
struct Column {
    head: &'static str,
    width: usize,
    /// Whether the cells contain text. Text is aligned to the left, numbers to the right.
    is_text: bool,
}

/// The heading of the column with the labels of connections. The table omits the column if no
/// connection has a label.
const LABEL: &str = "LABEL";

const COLUMNS: [Column; 14] = [
    Column::number("PID", 7),
    Column::text("COMMAND", 12),
    Column::number("CONN", 6),
    Column::text(LABEL, 12),
    Column::text("PEER", 22),
    Column::text("OVER", 4),
    Column::number("AGE", 6),
    Column::number("OUT", 10),
    Column::number("IN", 10),
    Column::number("MSG/S", 8),
    Column::number("STALLS", 7),
    Column::number("RESUMES", 7),
    Column::number("RESENT", 7),
    Column::number("HELD", 5),
];

/// The columns that a narrow table omits, in this order, until the remaining columns fit the
/// terminal. The columns that are not in this list always fit into 80 characters.
const OMITTABLE: [&str; 7] = ["RESENT", "RESUMES", "AGE", "CONN", "COMMAND", LABEL, "OVER"];

impl Column {
    const fn number(head: &'static str, width: usize) -> Self {
        Self {
            head,
            width,
            is_text: false,
        }
    }

    const fn text(head: &'static str, width: usize) -> Self {
        Self {
            is_text: true,
            ..Self::number(head, width)
        }
    }

    fn cell(&self, text: &str) -> String {
        let width = self.width;
        if self.is_text {
            format!("{text:<width$}")
        } else {
            format!("{text:>width$}")
        }
    }
}

/// Returns the indices of the columns that fit into a line of `width` characters. `has_labels` is
/// true if any connection has a label.
fn columns_for(width: usize, has_labels: bool) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..COLUMNS.len())
        .filter(|at| has_labels || COLUMNS[*at].head != LABEL)
        .collect();
    for head in OMITTABLE {
        let needed: usize = columns.iter().map(|at| COLUMNS[*at].width + 1).sum();
        if needed <= width + 1 {
            break;
        }
        columns.retain(|at| COLUMNS[*at].head != head);
    }
    columns
}

impl Row {
    fn is_suspended(&self) -> bool {
        self.of.state == SUSPENDED
    }

    /// Returns the text of each column.
    fn cells(&self) -> [String; COLUMNS.len()] {
        let Self { key, of, .. } = self;
        [
            key.pid.to_string(),
            of.command.chars().take(12).collect(),
            key.connection.to_string(),
            of.label.chars().take(12).collect(),
            of.peer.clone(),
            of.transport.clone(),
            age(of.age),
            // Show the state in this column, because the table never omits this column.
            if self.is_suspended() {
                SUSPENDED.to_owned()
            } else {
                bytes_per_second(self.sent)
            },
            bytes_per_second(self.received),
            format!("{:.0}", self.messages),
            format!("{:.0}", self.stalls),
            format!("{:.0}", of.resumes),
            format!("{:.0}", of.resent),
            format!("{:.0}", of.held),
        ]
    }
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
            // A connection that is not in the first reading was opened later, so its counters
            // started at 0.
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
        // Sort by value, the largest first, and then by key, so that rows with equal values keep
        // their order when the table is updated.
        rows.sort_by(|one, other| by(other).total_cmp(&by(one)).then(one.key.cmp(&other.key)));
        let ended = now.ended.iter().filter(|(_, count)| **count > 0);
        let mut ended: Vec<_> = ended
            .map(|(reason, count)| (reason.clone(), *count))
            .collect();
        ended.sort_by_key(|(_, count)| Reverse(*count));
        Self {
            rows,
            processes: now.processes,
            round_trips: now.round_trips.clone(),
            ended,
        }
    }

    /// Returns a line with the round-trip times and the number of ended connections for each
    /// reason.
    fn totals(&self) -> String {
        let round_trips = match (self.round_trips.mean(), self.round_trips.p99()) {
            (None, _) => "none".to_owned(),
            (Some(mean), None) => format!("{} on average", micros(mean)),
            (Some(mean), Some(p99)) => {
                let p99 = micros(p99 as f64);
                format!("{} on average, 99 % within {p99}", micros(mean))
            }
        };
        let ended = self
            .ended
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"));
        let ended = match ended.collect::<Vec<_>>().join(", ") {
            ended if ended.is_empty() => "none".to_owned(),
            ended => ended,
        };
        format!("round trips: {round_trips}; ended: {ended}")
    }

    fn sum(&self, of: impl Fn(&Row) -> f64) -> f64 {
        // The sum of an empty iterator is -0.0, which would be printed with its sign.
        self.rows.iter().map(of).sum::<f64>().abs()
    }

    /// Returns the view as one line of JSON.
    pub(super) fn to_json(&self) -> String {
        let connections = self.rows.iter().map(|row| ConnectionJson {
            pid: row.key.pid,
            command: &row.of.command,
            connection: row.key.connection,
            label: &row.of.label,
            peer: &row.of.peer,
            transport: &row.of.transport,
            state: row.of.state,
            age_seconds: row.of.age.as_secs_f64(),
            sent_bytes_per_second: row.sent,
            received_bytes_per_second: row.received,
            messages_per_second: row.messages,
            stalls_per_second: row.stalls,
            buffers_held: row.of.held,
            resumes: row.of.resumes,
            resent: row.of.resent,
            sent_bytes: row.of.sent,
            received_bytes: row.of.received,
            messages: row.of.messages,
        });
        let ended = self.ended.iter().map(|(reason, count)| (&**reason, *count));
        let json = ViewJson {
            processes: self.processes,
            round_trips: RoundTripsJson {
                count: self.round_trips.count,
                mean_us: self.round_trips.mean(),
                p99_within_us: self.round_trips.p99(),
            },
            ended: ended.collect(),
            connections: connections.collect(),
        };
        // The serialization cannot fail, because all keys are strings.
        serde_json::to_string(&json).unwrap_or_default()
    }

    /// Writes the table. Truncates its rows to `width` characters. If `lines` is `Some`, omits rows
    /// so that the table and the help line fit into this number of lines.
    pub(super) fn write(
        &self,
        out: &mut impl Write,
        width: usize,
        lines: Option<usize>,
    ) -> io::Result<()> {
        let (bold, inverted) = (Style::new().bold(), Style::new().invert());
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
                "\nNo process exports its statistics. A program exports them while it holds an \
                 rdmsg::observe::Export;\n`rdmsg serve --statistics` and `rdmsg bridge \
                 --statistics` do."
            )?;
            return Ok(());
        }
        let totals: String = self.totals().chars().take(width).collect();
        writeln!(out, "{totals}")?;
        let has_labels = self.rows.iter().any(|row| !row.of.label.is_empty());
        let columns = columns_for(width, has_labels);
        let fit = |cells: [String; COLUMNS.len()]| {
            let line = columns.iter().map(|at| COLUMNS[*at].cell(&cells[*at]));
            let line = line.collect::<Vec<_>>().join(" ");
            line.chars().take(width).collect::<String>()
        };
        let head = fit(COLUMNS.map(|column| column.head.to_owned()));
        writeln!(out, "{inverted}{head}{inverted:#}")?;
        let most = lines.map_or(usize::MAX, |lines| lines.saturating_sub(5));
        for row in self.rows.iter().take(most) {
            let text = fit(row.cells());
            let style = if row.is_suspended() {
                AnsiColor::Red.on_default()
            } else if row.stalls >= 1.0 {
                AnsiColor::Yellow.on_default()
            } else {
                Style::new()
            };
            writeln!(out, "{style}{text}{style:#}")?;
        }
        if self.rows.len() > most {
            writeln!(out, "… and {} more", self.rows.len() - most)?;
        }
        Ok(())
    }
}

/// Formats a duration with one unit. A number of seconds, minutes or hours has at most two digits.
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

    use clap::CommandFactory;
    use serde_json::{Value, json};

    use super::{super::reading::testing::reading, *};
    use crate::terminal::plain;

    fn json_of(view: &View) -> Value {
        serde_json::from_str(&view.to_json()).unwrap()
    }

    #[test]
    fn rates_are_between_two_readings() {
        let start = Instant::now();
        let (before, now) = (reading(start, 1, 1000), reading(start, 3, 5000));
        let view = View::sorted(&before, &now, Order::Bytes);
        let json = json_of(&view);
        let row = &json["connections"][0];
        assert_eq!(row["sent_bytes_per_second"], 2000.0);
        assert_eq!(row["messages_per_second"], 20.0);
        assert_eq!(row["received_bytes_per_second"], 0.0);
        let mut out = Vec::new();
        view.write(&mut out, 120, Some(24)).unwrap();
        let text = plain(&out);
        assert!(
            text.starts_with("1 connection of 1 process: 1.95 KiB/s out"),
            "{text}"
        );
        assert!(text.contains("10.8.0.1:7471"), "{text}");
        let totals = "round trips: 200 µs on average, 99 % within 500 µs; ended: 4 peer_closed\n";
        assert!(text.contains(totals), "{text}");
        assert_eq!(json["ended"]["peer_closed"], 4);
        assert_eq!(json["round_trips"]["p99_within_us"], 500);
    }

    #[test]
    fn suspended_connection_is_marked_in_any_width() {
        let start = Instant::now();
        let (before, mut now) = (reading(start, 1, 1000), reading(start, 3, 1000));
        now.connections.values_mut().next().unwrap().state = SUSPENDED;
        let view = View::sorted(&before, &now, Order::Bytes);
        let row = &json_of(&view)["connections"][0];
        assert_eq!(
            (&row["state"], &row["resumes"]),
            (&json!("suspended"), &json!(4.0))
        );
        assert_eq!(row["resent"], 70.0);
        for width in [80, 123] {
            let mut out = Vec::new();
            view.write(&mut out, width, Some(24)).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains(" suspended "), "{width}: {text}");
            assert_eq!(text.contains("RESENT"), width == 123, "{width}: {text}");
        }
    }

    #[test]
    fn a_narrow_terminal_has_the_rates() {
        let start = Instant::now();
        let (before, now) = (reading(start, 1, 0), reading(start, 2, 0));
        let view = View::sorted(&before, &now, Order::Bytes);
        for (width, has, lacks) in [
            (107, "AGE", "?"),
            (106, "CONN", "AGE"),
            (100, "CONN", "AGE"),
            (99, "COMMAND", "CONN"),
            (80, "OVER", "COMMAND"),
        ] {
            let mut out = Vec::new();
            view.write(&mut out, width, Some(24)).unwrap();
            let text = plain(&out);
            assert!(
                text.contains(has) && !text.contains(lacks),
                "{width}: {text}"
            );
            assert!(text.contains("HELD\n"), "{width}: {text}");
        }
    }

    #[test]
    fn help_names_the_omitted_columns_in_order() {
        let mut command = crate::Cli::command();
        let top = command.find_subcommand_mut("top").unwrap();
        let help = top.render_long_help().to_string().replace('\n', " ");
        assert!(help.contains(&OMITTABLE.join(", ")), "{help}");
    }

    #[test]
    fn label_is_shown_if_there_is_one() {
        let start = Instant::now();
        let (before, mut now) = (reading(start, 1, 0), reading(start, 2, 0));
        let written = |now: &Reading, width| {
            let mut out = Vec::new();
            let view = View::sorted(&before, now, Order::Bytes);
            view.write(&mut out, width, None).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(!written(&now, 136).contains(LABEL));
        now.connections.values_mut().next().unwrap().label = "orders".to_owned();
        for (width, shown) in [(136, true), (93, true), (92, false)] {
            let text = written(&now, width);
            assert_eq!(text.contains(LABEL), shown, "{width}: {text}");
            assert_eq!(text.contains(" orders "), shown, "{width}: {text}");
        }
        let json = json_of(&View::sorted(&before, &now, Order::Bytes));
        assert_eq!(json["connections"][0]["label"], "orders");
    }

    #[test]
    fn omitted_rows_are_counted() {
        let start = Instant::now();
        let (before, now) = (reading(start, 1, 0), reading(start, 2, 0));
        let view = View::sorted(&before, &now, Order::Held);
        let mut out = Vec::new();
        view.write(&mut out, 40, Some(4)).unwrap();
        let text = plain(&out);
        assert!(text.ends_with("… and 1 more\n"), "{text}");
        assert_eq!(age(Duration::from_secs(99)), "99s");
        assert_eq!(age(Duration::from_secs(7200)), "2h");
    }
}
