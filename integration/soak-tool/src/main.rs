//! Many connections between two programs, for a long time: messages of all sizes both ways, some kept for a while, and connections that
//! end in every way there is, each followed by the next one. Every message is accounted for, and at the end nothing may be left behind.
//!
//! `integration/soak` runs it.

mod board;
mod book;
mod client;
mod content;
mod control;
mod inbox;
mod keeper;
mod ledger;
mod plan;
mod readers;
mod run;
mod server;
mod session;
mod soak;
mod totals;

use std::{process::ExitCode, time::Duration};

use clap::Parser;

use toolbox::Side;

use crate::soak::{Settings, Soak};

#[derive(Parser)]
#[command(
    version,
    about = "One side of a soak. It runs in the lab: integration/soak starts both."
)]
enum Options {
    /// The side that accepts; it learns everything else from the other
    Server,
    /// The side that connects
    Client {
        /// How long to go on making connections
        #[arg(long, default_value_t = 10.0, value_parser = minutes)]
        minutes: f64,
        /// What decides everything that is random [default: another one each time]
        #[arg(long)]
        seed: Option<u64>,
        /// How many connections there are at a time
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
        endpoints: u64,
    },
}

/// More than nothing and less than a month.
fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if minutes > 0.0 && minutes < 43_200.0 => Ok(minutes),
        _ => Err("a number of minutes above 0 and below 43200 is needed".into()),
    }
}

fn main() -> ExitCode {
    let result = match Options::parse() {
        Options::Server => Soak::run(Side::Server, None),
        Options::Client {
            minutes,
            seed,
            endpoints,
        } => {
            let settings = Settings {
                seed: seed.unwrap_or_else(|| fastrand::u64(..)),
                endpoints,
                duration: Duration::from_secs_f64(minutes * 60.0),
            };
            println!(
                "soak: {endpoints} endpoints at a time for {minutes} min, seed {}",
                settings.seed
            );
            Soak::run(Side::Client, Some(settings))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}
