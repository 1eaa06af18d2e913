//! What flow control costs with many connections on one pool of receives.
//!
//! The library's credit and account use nothing but what is named here, and none of it calls into
//! C. So they are compiled right here, from the library's own source.

#[allow(dead_code, reason = "the state machine uses all of it")]
#[path = "../../../src/proto/account.rs"]
mod account;
#[path = "../../../src/proto/control_receives.rs"]
mod control_receives;
#[allow(dead_code, reason = "as above")]
#[path = "../../../src/proto/credit.rs"]
mod credit;
#[allow(dead_code, reason = "as above")]
#[path = "../../../src/proto/outbound.rs"]
mod outbound;
#[allow(dead_code, unreachable_pub, reason = "it is public in the library")]
#[path = "../../../src/proto/violation.rs"]
mod violation;

mod server;
mod simulation;

use std::{
    env,
    error::Error,
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, anyhow};
use clap::Parser;
use plotters::prelude::*;

use self::simulation::{Outcome, Simulation};

/// In pixels.
const EXTENT: (u32, u32) = (900, 560);

/// Receives for each connection, whether they are its own or in the pool: 16 messages and the
/// control frames.
const RECEIVES: u32 = 28;

/// How many messages the connections have in all, where they do not come at once.
const MESSAGES: u32 = 1_000_000;

/// How many messages each has, where they come at once.
const BURST: u32 = 16;

/// When the connections have something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// At random, by nine tenths of what the server can take.
    FanIn,
    /// The same, and nine of ten messages are from one connection in a hundred.
    Skewed,
    /// Everything at once.
    Incast,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FanIn => "fan-in",
            Self::Skewed => "skewed fan-in",
            Self::Incast => "incast",
        })
    }
}

/// Whose the receives are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receives {
    Own,
    Shared,
}

impl fmt::Display for Receives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::Shared => "shared",
        })
    }
}

/// 100 to 100,000 connections to one server, simulated
///
/// With the library's own credit and account of shared receives, of which the rest is a simulation:
/// no machine needs a device for it, nor the memory. Each connection has 28 receives, its own or as
/// its share of a pool, and sends a million messages with the others at random, by nine tenths of
/// what the server can take; or nine of ten of these are one hundredth's of the connections; or all
/// send 16 at once.
///
/// Prints a table, and draws two plots into target/bench. Ends 0 if each message was served and
/// found a receive.
#[derive(Parser)]
#[command(
    name = "integration/scale",
    bin_name = "integration/scale",
    verbatim_doc_comment
)]
struct Options {}

fn main() -> Result<()> {
    Options::parse();
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    simulate(&target.join("bench"))
}

/// Simulates all loads, prints a table, and draws it into a folder.
fn simulate(folder: &Path) -> Result<()> {
    println!(
        "| load | receives | connections | cost of a message | grants a message | waits p50 | p99 | \
         longest | receives never used |\n|---|---|--:|--:|--:|--:|--:|--:|--:|"
    );
    let mut lines = Vec::new();
    for load in [Load::FanIn, Load::Skewed, Load::Incast] {
        for receives in [Receives::Own, Receives::Shared] {
            let mut line = Line {
                name: format!("{load}, {receives}"),
                outcomes: Vec::new(),
            };
            for connections in [100, 1000, 10_000, 100_000] {
                let outcome = Simulation::new(load, receives, connections).run();
                println!("| {load} | {receives} | {connections} | {outcome} |");
                line.outcomes.push((f64::from(connections), outcome));
            }
            lines.push(line);
        }
    }
    fs::create_dir_all(folder)?;
    let figures: [Figure; 2] = [
        (
            "cost",
            "cost of a message, in times of one served",
            |outcome| outcome.cost(),
        ),
        (
            "grants",
            "grants in frames of their own, a message",
            |outcome| outcome.grants_a_message(),
        ),
    ];
    for (name, what, figure) in figures {
        let file = folder.join(format!("scale-{name}.svg"));
        draw(&file, what, &lines, figure)
            .map_err(|error| anyhow!("cannot draw {}: {error}", file.display()))?;
        println!("{}", file.display());
    }
    Ok(())
}

/// The name of a file, what it shows, and of each outcome what that is.
type Figure = (&'static str, &'static str, fn(&Outcome) -> f64);

/// A load at several numbers of connections.
struct Line {
    name: String,
    outcomes: Vec<(f64, Outcome)>,
}

fn draw(
    file: &Path,
    what: &str,
    lines: &[Line],
    figure: fn(&Outcome) -> f64,
) -> Result<(), Box<dyn Error>> {
    let points = |line: &Line| -> Vec<(f64, f64)> {
        let points = line.outcomes.iter();
        points
            .map(|(count, outcome)| (*count, figure(outcome)))
            .collect()
    };
    let most = lines.iter().flat_map(points).map(|point| point.1);
    let most = most.fold(0.0, f64::max) * 1.4;
    let area = SVGBackend::new(file, EXTENT).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(what, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d((80.0..125_000.0).log_scale(), 0.0..most)?;
    chart
        .configure_mesh()
        .x_desc("connections to one server")
        .x_label_formatter(&|count| format!("{count}"))
        .light_line_style(WHITE)
        .draw()?;
    for (place, line) in lines.iter().enumerate() {
        let color = Palette99::pick(place).to_rgba();
        let series = LineSeries::new(points(line), color.stroke_width(2));
        chart
            .draw_series(series.point_size(3))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}
