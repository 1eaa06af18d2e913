use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use super::{
    measure::Measured,
    options::Test,
    plan::{Plan, Point},
    results::Results,
};
use crate::{
    arguments::Carrier,
    measure::{bytes_per_second, micros, per_second},
};

/// The width of a column of results, in characters.
const COLUMN: usize = 22;

/// Writes the results as text: a table for each test, with a row for each size and number of
/// connections.
pub(super) fn write(out: &mut impl Write, results: &Results, plan: &Plan) -> io::Result<()> {
    for test in [Test::Latency, Test::Bandwidth, Test::Rate] {
        write_test(out, test, results, plan)?;
    }
    Ok(())
}

fn write_test(out: &mut impl Write, test: Test, results: &Results, plan: &Plan) -> io::Result<()> {
    let measured = |point: &Point| point.test == test && results.of(point).is_some();
    if !plan.points().iter().any(measured) {
        return Ok(());
    }
    let (title, columns) = match test {
        Test::Latency => ("latency: round trip, less is better", "median       99 %"),
        Test::Bandwidth => ("bandwidth: one way, more is better", ""),
        Test::Rate => ("rate: one way, more is better", ""),
    };
    let carriers = plan.carriers();
    let (bold, dim) = (Style::new().bold(), Style::new().dimmed());
    writeln!(out, "\n{bold}{title}{bold:#}")?;
    write!(out, "{dim}    size  connections")?;
    for carrier in &carriers {
        write!(out, "  {:>COLUMN$}", carrier.name())?;
    }
    let compared = carriers == [Carrier::Rdma, Carrier::Tcp];
    if compared {
        write!(out, "  RDMA is")?;
    }
    writeln!(out, "{dim:#}")?;
    if !columns.is_empty() {
        write!(out, "{dim}{:19}", "")?;
        for _ in &carriers {
            write!(out, "  {columns:>COLUMN$}")?;
        }
        writeln!(out, "{dim:#}")?;
    }
    let of_test = plan.points().iter().filter(|point| point.test == test);
    for first in of_test.filter(|point| point.carrier == carriers[0]) {
        let row = carriers.iter().map(|&carrier| Point { carrier, ..*first });
        let row: Vec<Option<&Measured>> = row.map(|point| results.of(&point)).collect();
        if row.iter().all(Option::is_none) {
            continue;
        }
        write!(out, "{:>8}  {:>11}", first.size, first.connections)?;
        for measured in &row {
            let text = measured.map_or_else(|| "–".into(), |it| text_of(first, it));
            write!(out, "  {text:>COLUMN$}")?;
        }
        if let ([Some(ours), Some(other)], true) = (&row[..], compared) {
            let (style, text) = compare(test, ours, other);
            write!(out, "  {style}{text}{style:#}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn text_of(point: &Point, measured: &Measured) -> String {
    let rate = measured.messages_per_second;
    match point.test {
        Test::Latency => measured.times.summary().map_or_else(
            || "–".into(),
            |times| format!("{} {:>10}", micros(times.median), micros(times.p99)),
        ),
        Test::Bandwidth => bytes_per_second(rate * point.size.0 as f64),
        Test::Rate => per_second(rate),
    }
}

/// Compares the results of two transports. Returns the comparison as text, with its colour.
fn compare(test: Test, ours: &Measured, other: &Measured) -> (Style, String) {
    let value = |measured: &Measured| match test {
        Test::Latency => measured
            .times
            .summary()
            .map_or(f64::NAN, |times| 1.0 / times.median),
        Test::Bandwidth | Test::Rate => measured.messages_per_second,
    };
    let ratio = value(ours) / value(other);
    let words = match test {
        Test::Latency => ["shorter", "longer"],
        Test::Bandwidth | Test::Rate => ["more", "less"],
    };
    // Call differences below 10 % "the same", because the next run may reverse them.
    if ratio > 1.1 {
        (
            AnsiColor::Green.on_default(),
            format!("{ratio:.1} x {}", words[0]),
        )
    } else if ratio < 1.0 / 1.1 {
        (
            AnsiColor::Yellow.on_default(),
            format!("{:.1} x {}", 1.0 / ratio, words[1]),
        )
    } else if ratio.is_finite() {
        (Style::new(), "the same".into())
    } else {
        (Style::new(), String::new())
    }
}
