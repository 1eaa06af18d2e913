//! The sweep measures half a round trip of 60 message sizes, to find a size that costs more than
//! its neighbours. One connection carries messages of all sizes, one size after the other.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use toolbox::Side;

use crate::{
    conduct::{Conductor, OURS, THEIRS},
    measure::{Measure, bytes},
    messages::{Carrier, runtime},
    program::{Program, Run, last_json},
    row::{self, Row, Target},
    traffic::{Times, Traffic},
    work::Scope,
};

/// The message sizes in bytes, in ascending order. They are below, at and above the sizes at which
/// a cost can change:
///
/// * the inline size
/// * multiples of the packet size, which is 1024 B, with and without the header of 16 B
/// * the eager size (16 KiB over RDMA, 64 KiB over TCP) and its multiples
/// * the longest message in frames (48 KiB over RDMA, 1 MiB over TCP)
/// * the length that one RDMA READ transfers (64 KiB to 1 MiB)
/// * the length of a TCP segment over loopback (64 KiB)
#[rustfmt::skip]
pub(crate) const SIZES: [usize; 60] = [
    1, 64, 112, 113, 128, 240, 241, 256, 257, 512, 768,
    1008, 1009, 1024, 1025, 2032, 2033, 2048, 2049, 3056, 3057, 3072, 3073,
    4080, 4081, 4096, 4097, 6144, 8176, 8177, 8192, 8193, 12_288,
    16_368, 16_369, 16_384, 16_385, 16_400, 20_480, 24_576, 32_768, 32_769, 40_960,
    49_152, 49_153, 57_344, 65_520, 65_535, 65_536, 65_537, 98_304, 131_072, 131_073,
    262_144, 524_288, 1_048_576, 1_048_577, 2_097_152, 4_194_304, 4_194_305,
];

/// The maximum length in bytes of a message that `verbs` sends. The length is limited, because
/// `verbs` has a slot of this size for each message in flight.
const LONGEST_OF_VERBS: usize = 131_072;

/// The maximum permitted [`Step::ratio`] for rdmsg.
const BOUND: f64 = 1.10;

/// The programs to which the bound applies, and the programs to compare with.
const OUR_PROGRAMS: [&str; 2] = ["rdmsg event", "rdmsg event tcp"];
const OTHER_PROGRAMS: [&str; 2] = ["verbs", "std"];

/// The cost of each size, measured with one program.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Sweep {
    /// The name of the program.
    pub(crate) name: String,
    /// The sizes in bytes, in ascending order, each with the duration of half a round trip in µs.
    pub(crate) costs: Vec<(usize, f64)>,
}

/// A size that is compared with its neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    size: usize,
    /// The duration of half a round trip in µs.
    cost: f64,
    /// The larger of two ratios: the cost per byte divided by the cost per byte of the next smaller
    /// size, and the cost divided by the cost of the next larger size.
    ratio: f64,
    /// The size of the neighbour whose cost is the divisor in `ratio`.
    beside: usize,
}

impl Sweep {
    /// Compares each size with its neighbours.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let step = |place: usize, &(size, cost): &(usize, f64)| {
            let before = place.checked_sub(1).and_then(|place| self.costs.get(place));
            let per_byte = before.map(|&(other, of_other)| {
                let scaled = of_other * size as f64 / other as f64;
                (cost / scaled, other)
            });
            let after = self.costs.get(place + 1);
            let absolute = after.map(|&(other, of_other)| (cost / of_other, other));
            let ratios = per_byte.into_iter().chain(absolute);
            let (ratio, beside) = ratios.max_by(|a, b| a.0.total_cmp(&b.0))?;
            Some(Step {
                size,
                cost,
                ratio,
                beside,
            })
        };
        let places = self.costs.iter().enumerate();
        places
            .filter_map(|(place, cost)| step(place, cost))
            .collect()
    }

    fn worst(&self) -> Option<Step> {
        let steps = self.steps().into_iter();
        steps.max_by(|a, b| a.ratio.total_cmp(&b.ratio))
    }

    /// Returns true if the program is rdmsg, to which the bound applies.
    fn is_ours(&self) -> bool {
        OUR_PROGRAMS.contains(&self.name.as_str())
    }
}

/// Returns true if a step of one of our programs is beyond the bound, or if one of our programs was
/// not measured.
pub(crate) fn is_beyond_bound(sweeps: &[Sweep]) -> bool {
    let ours = || sweeps.iter().filter(|sweep| sweep.is_ours());
    let is_beyond = |sweep: &Sweep| sweep.worst().is_none_or(|step| step.ratio > BOUND);
    ours().count() < OUR_PROGRAMS.len() || ours().any(is_beyond)
}

/// Returns the lines of a table: the column headings, and then one line per size, with the cost and
/// the step of each program. A star marks a step beyond the bound. If `only_beyond` is set, returns
/// only the sizes at which one of our programs is beyond the bound.
pub(crate) fn table(sweeps: &[Sweep], only_beyond: bool) -> Vec<Vec<String>> {
    let mut title = vec!["bytes".to_owned()];
    title.extend(sweeps.iter().flat_map(|sweep| {
        let name = sweep.name.replace("rdmsg event", "rdmsg");
        [format!("{name}, µs"), "step".to_owned()]
    }));
    let mut lines = vec![title];
    let steps: Vec<_> = sweeps.iter().map(|sweep| (sweep, sweep.steps())).collect();
    for size in SIZES {
        let mut cells = vec![size.to_string()];
        let mut is_beyond = false;
        for (sweep, steps) in &steps {
            let step = steps.iter().find(|step| step.size == size);
            is_beyond |= sweep.is_ours() && step.is_some_and(|step| step.ratio > BOUND);
            let mark = |ratio| if ratio > BOUND { " *" } else { "" };
            let ratio = |step: &Step| format!("{:.2}{}", step.ratio, mark(step.ratio));
            cells.push(step.map_or_else(String::new, |step| format!("{:.1}", step.cost)));
            cells.push(step.map_or_else(String::new, ratio));
        }
        if is_beyond || !only_beyond {
            lines.push(cells);
        }
    }
    lines
}

/// Returns one sentence per program, about the worst step of the program.
pub(crate) fn summary(sweeps: &[Sweep]) -> Vec<String> {
    let line = |sweep: &Sweep| {
        let step = sweep.worst()?;
        let unit = match step.beside < step.size {
            true => "the cost per byte",
            false => "the whole cost",
        };
        let [size, beside] = [step.size, step.beside].map(bytes);
        let (name, ratio) = (&sweep.name, step.ratio);
        Some(format!(
            "{name}: at worst, {size} cost {ratio:.3} times {unit} of {beside}"
        ))
    };
    sweeps.iter().filter_map(line).collect()
}

/// Measures the sweeps, and adds a row for each of our programs.
pub(crate) fn add(conductor: &mut Conductor, scope: Scope, rounds: u32) {
    // After a boot, the kernel still has work to do, which increases the figures of the first
    // program. So the programs without a bound run first.
    let others = OTHER_PROGRAMS.iter().filter(|_| scope == Scope::Sweep);
    for name in others.chain(&OUR_PROGRAMS) {
        let is_ours = OUR_PROGRAMS.contains(name);
        let mut figures = Vec::new();
        for round in 1..=rounds {
            let what = format!("round {round} of {rounds}, {name}, sweep of sizes");
            conductor.say(&what);
            let attempts = if is_ours { OURS } else { THEIRS };
            let sweep = conductor.attempt(&what, attempts, |this| measured(this, &what, name));
            let Some(sweep) = sweep else { continue };
            figures.extend(sweep.worst().map(|step| step.ratio));
            conductor.report.sweeps.push(sweep);
        }
        if is_ours && !figures.is_empty() {
            conductor.report.rows.push(Row {
                part: conductor.part,
                measure: Measure::Step,
                size: 0,
                ours: row::Side {
                    name: (*name).to_owned(),
                    figures,
                },
                theirs: None,
                target: Target::AtMost(BOUND),
            });
        }
    }
}

fn measured(conductor: &mut Conductor, what: &str, name: &str) -> Result<Sweep> {
    let program: Program = name.parse()?;
    let size = match name {
        "verbs" => LONGEST_OF_VERBS,
        _ => SIZES[SIZES.len() - 1],
    };
    let run = Run {
        program,
        measure: Measure::Step,
        size,
        count: 1,
    };
    let output = conductor.client_of(what, &run, |_| {})?;
    let costs = last_json(&output);
    Ok(Sweep {
        name: name.to_owned(),
        costs: costs.context("the client printed no costs")?,
    })
}

/// Returns the number of unmeasured round trips and the number of measured round trips for a size.
/// The receiver sends a grant for further messages after every 16 messages. For sizes up to 64 KiB,
/// this grant affects the mean, so the number of measured round trips is a multiple of 16. Over
/// TCP, the costs are lower but vary more, so the number of measured round trips is four times
/// higher.
fn counts(traffic: &Traffic, size: usize) -> (u64, u64) {
    let (before, count) = match size {
        1 => (64, 32),
        2..=0x1001 => (2, 32),
        0x1002..=0x1_0001 => (2, 16),
        0x1_0002..=0x8_0000 => (2, 8),
        0x8_0001..=0x10_0001 => (2, 4),
        _ => (1, 2),
    };
    match traffic.manner.is_over_tcp() {
        true => (before, count * 4),
        false => (before, count),
    }
}

/// Returns the sizes of a run whose longest message has `longest` bytes.
fn sizes(longest: usize) -> impl Iterator<Item = usize> {
    SIZES.into_iter().filter(move |size| *size <= longest)
}

/// Sends all messages back.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    runtime()?.block_on(async {
        let mut carriers = Carrier::all(traffic, Side::Server).await?;
        let carrier = carriers.first_mut().context("no connection")?;
        for size in sizes(traffic.size) {
            let (before, count) = counts(traffic, size);
            for _ in 0..before + count {
                carrier.send_back(size).await?;
            }
        }
        // Wait until the client has closed the connection.
        drop(carrier.receive(1).await);
        Ok(())
    })
}

/// Measures the duration of half a round trip, in µs, for each size.
pub(crate) fn measure(traffic: &Traffic) -> Result<Vec<(usize, f64)>> {
    runtime()?.block_on(async {
        let mut carriers = Carrier::all(traffic, Side::Client).await?;
        let mut carrier = carriers.pop().context("no connection")?;
        let message = vec![0x5a; traffic.size];
        let mut costs = Vec::new();
        for size in sizes(traffic.size) {
            let (before, count) = counts(traffic, size);
            let mut reading = None;
            for count in [before, count] {
                let mut times = Times::start(count);
                for _ in 0..count {
                    carrier.send(&message[..size]).await?;
                    carrier.receive(size).await?;
                    times.record(2);
                }
                reading = Some(times.reading());
            }
            costs.push((size, reading.context("no times")?.mean));
        }
        carrier.close().await?;
        Ok(costs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(costs: &[(usize, f64)]) -> Sweep {
        Sweep {
            name: OUR_PROGRAMS[0].to_owned(),
            costs: costs.to_vec(),
        }
    }

    #[test]
    fn sizes_ascend_around_boundaries() {
        assert!(SIZES.is_sorted_by(|a, b| a < b));
        for boundary in [1024, 4096, 16 << 10, 48 << 10, 64 << 10, 1 << 20, 4 << 20] {
            for size in [boundary, boundary + 1] {
                assert!(SIZES.contains(&size), "{size}");
            }
        }
    }

    #[test]
    fn steps_compare_each_size_with_both_neighbours() {
        // 200 B have the same cost per byte as 100 B. 300 B cost less than 201 B.
        let sweep = sweep(&[(100, 10.0), (200, 20.0), (201, 30.0), (300, 25.0)]);
        let steps = sweep.steps();
        let beside: Vec<_> = steps.iter().map(|step| (step.size, step.beside)).collect();
        assert_eq!(beside, [(100, 200), (200, 100), (201, 200), (300, 201)]);
        assert_eq!((steps[0].ratio, steps[1].ratio), (0.5, 1.0));
        let expected = 30.0 / (20.0 * 201.0 / 200.0);
        assert!((steps[2].ratio - expected).abs() < 1e-9);
        assert_eq!(sweep.worst(), Some(steps[2]));
        assert!(summary(&[sweep])[0].ends_with("1.493 times the cost per byte of 200 B"));
    }

    #[test]
    fn shorter_message_may_not_cost_more() {
        let sweep = sweep(&[(100, 10.0), (200, 40.0), (201, 30.0)]);
        let [_, dear, _] = sweep.steps()[..] else {
            panic!()
        };
        // Compared with the cost per byte of 100 B, the ratio is 2. Compared with the cost of
        // 201 B, the ratio is only 4/3.
        assert_eq!((dear.ratio, dear.beside), (2.0, 100));
        let alone = self::sweep(&[(200, 40.0), (201, 30.0)]).steps()[0];
        assert!((alone.ratio - 4.0 / 3.0).abs() < 1e-9 && alone.beside == 201);
    }

    #[test]
    fn bound_needs_all_programs() {
        let even = |name: &str| Sweep {
            name: name.to_owned(),
            costs: SIZES.iter().map(|size| (*size, 20.0)).collect(),
        };
        let mut sweeps = OUR_PROGRAMS.map(even).to_vec();
        assert!(!is_beyond_bound(&sweeps));
        assert!(is_beyond_bound(&sweeps[1..]));
        assert_eq!(table(&sweeps, true).len(), 1);
        sweeps.push(even("std"));
        sweeps[2].costs[30].1 *= 2.0;
        assert!(!is_beyond_bound(&sweeps));
        sweeps[1].costs[30].1 *= 1.2;
        assert!(is_beyond_bound(&sweeps));
        assert_eq!(table(&sweeps, true)[1][0], SIZES[30].to_string());
        assert_eq!(table(&sweeps, false).len(), 61);
    }
}
