//! Loads on this machine, directly and through pairs of programs.

use std::{env, fs, net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use toolbox::BridgePair;

use super::{
    copier,
    load::{self, Done, Load},
};

/// A line of the table.
struct Row {
    name: &'static str,
    load: Load,
    /// The unit of the rate, and the number of counted items in it.
    rate: (&'static str, f64),
    /// The unit to which the processor time refers, and the number of counted items in it.
    unit: (&'static str, f64),
}

/// A way to the service, with the processes in between.
struct Way {
    name: &'static str,
    address: SocketAddr,
    between: Vec<u32>,
}

const ROWS: [Row; 6] = [
    Row {
        name: "a connection each request, 8 clients",
        load: Load::Connections(8),
        rate: ("/s", 1.0),
        unit: ("connection", 1.0),
    },
    requests("64 B, 1 at a time", 64, 1),
    requests("100 KB, 1 at a time", 100_000, 1),
    requests("100 KB, 8 at a time", 100_000, 8),
    streams("1 stream", 1),
    streams("8 streams", 8),
];

const fn requests(name: &'static str, len: usize, at_once: usize) -> Row {
    Row {
        name,
        load: Load::Requests { len, at_once },
        rate: ("/s", 1.0),
        unit: ("request", 1.0),
    }
}

const fn streams(name: &'static str, count: usize) -> Row {
    Row {
        name,
        load: Load::Streams(count),
        rate: ("MB/s", 1e6),
        unit: ("MB", 1e6),
    }
}

/// Runs each load for this time on each way, `rounds` times in turn, and prints a table.
pub(crate) fn measure(time: Duration, rounds: u32) -> Result<()> {
    let service = load::serve()?;
    let (far, behind) = copier::start(service)?;
    let (near, copied) = copier::start(behind)?;
    let rdmsg = env::current_exe()?.with_file_name("rdmsg");
    let pair = BridgePair::start(&rdmsg, "rdmsg+tcp://127.0.0.1:0", service, &[])?;
    let ways = [
        Way {
            name: "direct",
            address: service,
            between: Vec::new(),
        },
        Way {
            name: "two copiers",
            address: copied,
            between: vec![near.id(), far.id()],
        },
        Way {
            name: "two bridges",
            address: pair.address(),
            between: vec![pair.near.id(), pair.far.id()],
        },
    ];
    println!("| load | way | rate | of direct | processor time |");
    println!("|---|---|---|---|---|");
    for row in &ROWS {
        let mut found = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            for (way, found) in ways.iter().zip(&mut found) {
                found.push(way.measure(row, time)?);
            }
        }
        let found = found.map(|rounds| {
            let (rates, times) = rounds.into_iter().unzip();
            (median(rates), median(times))
        });
        let [(direct, _), _, _] = found;
        for (way, (rate, micros)) in ways.iter().zip(found) {
            let Row {
                name,
                rate: (rate_unit, _),
                unit: (unit, _),
                ..
            } = row;
            let way_name = way.name;
            let share = rate / direct;
            let used = match way.between[..] {
                [] => String::new(),
                [..] => format!("{micros:.0} µs a {unit}"),
            };
            println!("| {name} | {way_name} | {rate:.0}{rate_unit} | {share:.2} | {used} |");
        }
    }
    Ok(())
}

impl Way {
    /// Returns the rate, and the processor time of the processes in between in microseconds.
    fn measure(&self, row: &Row, time: Duration) -> Result<(f64, f64)> {
        let before = self.processor_time()?;
        let Done { rate, all } = row.load.run(self.address, time)?;
        let used = self.processor_time()?.saturating_sub(before);
        let units = all as f64 / row.unit.1;
        Ok((rate / row.rate.1, used.as_secs_f64() * 1e6 / units))
    }

    fn processor_time(&self) -> Result<Duration> {
        self.between.iter().copied().map(processor_time).sum()
    }
}

/// The processor time of a process so far, of its own and of the kernel for it.
fn processor_time(process: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("a name is missing")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || {
        let field = fields.next().context("a field is missing")?;
        anyhow::Ok(field.parse::<u64>()?)
    };
    let hundredths = ticks()? + ticks()?;
    Ok(Duration::from_millis(10 * hundredths))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
