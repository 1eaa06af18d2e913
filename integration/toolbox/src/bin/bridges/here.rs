//! Measures loads on this machine in three setups: with a direct connection, with two copiers, and
//! with two bridges.

use std::{env, net::SocketAddr, time::Duration};

use anyhow::Result;
use nix::{
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};
use toolbox::BridgePair;

use super::{
    copier,
    load::{self, Load},
};

/// The rows of the table: each load with its name.
const ROWS: [(&str, Load); 6] = [
    (
        "one connection per request, 8 clients",
        Load::Connections(8),
    ),
    ("64 B, 1 at a time", Load::Requests(64, 1)),
    ("100 KB, 1 at a time", Load::Requests(100_000, 1)),
    ("100 KB, 8 at a time", Load::Requests(100_000, 8)),
    ("1 stream", Load::Streams(1)),
    ("8 streams", Load::Streams(8)),
];

/// The duration of one measurement.
const TIME: Duration = Duration::from_secs(1);

/// The number of measurements of each load in each setup.
const ROUNDS: usize = 3;

/// Measures each load in each of the three setups, and prints a table of the medians.
pub(crate) fn measure() -> Result<()> {
    let service = load::serve()?;
    let (far, behind) = copier::start(service)?;
    let (near, copied) = copier::start(behind)?;
    let rdmsg = env::current_exe()?.with_file_name("rdmsg");
    let pair = BridgePair::start(&rdmsg, "rdmsg+tcp://127.0.0.1:0", service, &[])?;
    // The three setups. Each has a name, an address, and the ids of the processes between the
    // client and the service.
    let setups: [(&str, SocketAddr, &[u32]); 3] = [
        ("direct", service, &[]),
        ("two copiers", copied, &[near.id(), far.id()]),
        (
            "two bridges",
            pair.near.address,
            &[pair.near.process.id(), pair.far.process.id()],
        ),
    ];
    println!("| load | way | rate | of direct | processor time |");
    println!("|---|---|---|---|---|");
    for (name, load) in ROWS {
        let (rate_unit, unit, _) = load.units();
        let mut found = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            for ((_, address, between), found) in setups.iter().zip(&mut found) {
                found.push(run(load, *address, between)?);
            }
        }
        let found = found.map(|rounds| {
            let (rates, times) = rounds.into_iter().unzip();
            (median(rates), median(times))
        });
        let [(direct, _), _, _] = found;
        for ((way, _, between), (rate, micros)) in setups.iter().zip(found) {
            let share = rate / direct;
            let used = match between {
                [] => String::new(),
                [..] => format!("{micros:.0} µs per {unit}"),
            };
            println!("| {name} | {way} | {rate:.0}{rate_unit} | {share:.2} | {used} |");
        }
    }
    Ok(())
}

/// Runs a load. Returns the rate in the units of the table. Also returns the processor time of the
/// processes in `between`, in microseconds per connection, request or megabyte.
fn run(load: Load, service: SocketAddr, between: &[u32]) -> Result<(f64, f64)> {
    let used = || between.iter().map(processor_time).sum::<Result<Duration>>();
    let before = used()?;
    let (rate, all) = load.run(service, TIME)?;
    let used = used()?.saturating_sub(before);
    let (_, _, unit) = load.units();
    Ok((rate / unit, used.as_secs_f64() * 1e6 / (all as f64 / unit)))
}

/// Returns the processor time that a process has used so far, in user mode and in the kernel.
fn processor_time(process: &u32) -> Result<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(*process as i32))?;
    Ok(clock_gettime(clock)?.into())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
