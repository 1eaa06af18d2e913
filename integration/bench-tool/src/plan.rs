//! The plan: the programs to compare and the targets, parsed from `rows.txt`.

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use toolbox::sections;

use crate::{
    measure::Measure,
    program::{Program, Run},
    row::{Part, Target, name},
};

/// The comparisons that are measured in one part.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Task {
    pub(crate) part: Part,
    /// The name of the comparisons in `rows.txt`, and of their table in the documentation.
    pub(crate) rows: String,
    /// Whether to measure only the comparisons that are marked with a star in `rows.txt`.
    pub(crate) quick: bool,
    /// A comparison is measured if its name contains one of these texts. If there are no texts, all
    /// comparisons are measured. The budget stores each figure under the name of its comparison.
    pub(crate) only: Vec<String>,
    pub(crate) rounds: u32,
}

/// One or two runs that become a row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) ours: Run,
    /// The run to compare with, or `None` if there is no comparison.
    pub(crate) theirs: Option<Run>,
    /// The target for the ratio of `ours` to `theirs`, or for `ours` if there is no comparison.
    pub(crate) target: Target,
    /// Whether the comparison is marked with a star.
    is_quick: bool,
}

/// The number of rounds of the parts that measure by the clock.
const CLOCK_ROUNDS: u32 = 7;

impl Task {
    pub(crate) fn new(part: Part, rows: &str) -> Self {
        Self {
            part,
            rows: rows.to_owned(),
            quick: false,
            only: Vec::new(),
            rounds: match part {
                Part::Counted | Part::Instructions => 1,
                Part::OneProcessor | Part::Loaded | Part::Free | Part::Hosts => CLOCK_ROUNDS,
            },
        }
    }

    /// Returns the comparisons to measure.
    pub(crate) fn pairs(&self) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        for (title, lines) in sections(include_str!("../rows.txt")) {
            let (names, measure) = title.split_once(": ").context(title)?;
            if !names.split(", ").any(|name| name == self.rows) {
                continue;
            }
            let start = pairs.len();
            for line in lines {
                add(&mut pairs, measure, line).with_context(|| line.to_owned())?;
            }
            pairs[start..].sort_by_key(|pair| pair.ours.size);
        }
        pairs.retain(|pair| {
            let name = pair.name();
            (pair.is_quick || !self.quick)
                && (self.only.is_empty() || self.only.iter().any(|text| name.contains(text)))
        });
        Ok(pairs)
    }
}

impl Pair {
    fn name(&self) -> String {
        let Run { measure, size, .. } = self.ours;
        let theirs = self.theirs.map(|run| run.name());
        name(measure, size, &self.ours.name(), theirs.as_deref())
    }
}

/// Parses a line of `rows.txt`, and adds its comparisons.
fn add(pairs: &mut Vec<Pair>, measure: &str, line: &str) -> Result<()> {
    let measure = Measure::from_str(measure, false).map_err(anyhow::Error::msg)?;
    let (programs, cells) = line.split_once(": ").context("no sizes")?;
    let (ours, theirs) = match programs.split_once(" / ") {
        Some((ours, theirs)) => (ours.parse()?, Some(theirs.parse()?)),
        None => (programs.parse()?, None),
    };
    for cell in cells.split(' ') {
        let (is_quick, cell) = match cell.strip_prefix('*') {
            Some(cell) => (true, cell),
            None => (false, cell),
        };
        let (cell, target) = if let Some((cell, limit)) = cell.split_once('≤') {
            (cell, Target::AtMost(limit.parse()?))
        } else if let Some((cell, limit)) = cell.split_once('≥') {
            (cell, Target::AtLeast(limit.parse()?))
        } else {
            (cell, Target::None)
        };
        let (size, count) = match cell.split_once('×') {
            Some((size, count)) => (bytes(size)?, count.parse()?),
            None => (bytes(cell)?, usual_count(measure, bytes(cell)?)),
        };
        let run = |program: Program| Run {
            program,
            measure,
            size,
            count,
        };
        pairs.push(Pair {
            ours: run(ours),
            theirs: theirs.map(run),
            target,
            is_quick,
        });
    }
    Ok(())
}

fn bytes(text: &str) -> Result<usize> {
    let (number, shift) = match (text.strip_suffix('K'), text.strip_suffix('M')) {
        (Some(number), _) => (number, 10),
        (_, Some(number)) => (number, 20),
        (None, None) => (text, 0),
    };
    Ok(number.parse::<usize>()? << shift)
}

/// Returns the number of messages in a run. The number is large enough that the first and the final
/// messages affect the mean by at most 1 %. perftest needs at least five messages.
fn usual_count(measure: Measure, size: usize) -> u64 {
    match (measure.is_rate(), size) {
        _ if measure == Measure::Sparse => 500,
        (false, 0..=0x400) => 1000,
        (false, 0..=0x4000) => 300,
        (false, 0..=0x1_0000) => 100,
        (false, _) => 12,
        (true, 0..=0x400) => 5000,
        (true, 0..=0x4000) => 2000,
        (true, 0..=0x1_0000) => 500,
        (true, ..=0x10_0000) => 60,
        (true, _) => 10,
    }
}

/// Returns all runs of a round, without duplicates. The two runs of a pair are adjacent, unless one
/// is a duplicate. The order affects the result of [`Measure::Connect`]: after a run has closed its
/// connections, the kernel is busy with them for a while. So for this measure, our program always
/// runs first.
pub(crate) fn runs(pairs: &[Pair]) -> Vec<Run> {
    let mut runs = Vec::new();
    for pair in pairs {
        let mut both: Vec<Run> = pair.theirs.into_iter().chain([pair.ours]).collect();
        if pair.ours.measure == Measure::Connect {
            both.reverse();
        }
        both.retain(|run| !runs.contains(run));
        runs.extend(both);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manner::Way;

    fn pairs(rows: &str) -> Vec<Pair> {
        Task::new(Part::Counted, rows).pairs().unwrap()
    }

    fn all() -> Vec<Vec<Pair>> {
        let names = [
            "counted",
            "polling counted",
            "instructions",
            "hosts",
            "many",
            "sweep",
            "polling one-processor",
            "polling loaded",
            "polling free",
            "polling free rdma",
        ];
        let found = names.map(pairs);
        assert!(found.iter().all(|pairs| !pairs.is_empty()));
        let mut quick = Task::new(Part::Counted, "counted");
        quick.quick = true;
        let quick = quick.pairs().unwrap().len();
        assert!(0 < quick && quick < found[0].len());
        found.into()
    }

    #[test]
    fn pairs_are_of_a_kind() {
        for pair in all().iter().flatten() {
            let ours = &pair.ours;
            if let Some(theirs) = &pair.theirs {
                assert_eq!((ours.size, ours.count), (theirs.size, theirs.count));
                assert_eq!(ours.measure, theirs.measure);
            }
            let Program::Rdmsg(manner) = ours.program else {
                panic!("{ours}")
            };
            assert!(manner.batch == 1 || ours.measure == Measure::OneWay);
        }
    }

    #[test]
    fn counted_programs_sleep() {
        for run in runs(&all()[..2].concat()) {
            // The default configuration is permitted, because it does not spin on a host with one
            // processor.
            let Program::Rdmsg(manner) = run.program else {
                continue;
            };
            assert!(!manner.has(Way::Busy), "{run}");
        }
    }

    #[test]
    fn selection_is_by_the_name_of_the_row() {
        let selected = |only: &[&str]| {
            let mut task = Task::new(Part::Counted, "many");
            task.only = only.iter().map(|text| (*text).to_owned()).collect();
            task.pairs().unwrap()
        };
        let one = selected(&["half round trip, 64 B: rdmsg event tcp tasks ×100 / codec ×100"]);
        assert_eq!(one.len(), 1);
        assert!(selected(&["descriptors", "memory"]).len() > 3);
        assert!(selected(&["no such row"]).is_empty());
    }

    #[test]
    fn lines_have_sizes_counts_and_targets() {
        let mut pairs = Vec::new();
        let line = "rdmsg event tcp / rstream tcp: 1 *64K≤1.03 0×200≥5";
        add(&mut pairs, "one way", line).unwrap();
        add(&mut pairs, "one way", "std: 64").unwrap();
        let [_, long, none, alone] = pairs[..] else {
            panic!("{pairs:?}")
        };
        assert_eq!((long.ours.size, long.ours.count), (64 << 10, 500));
        let theirs = long.theirs.unwrap();
        assert_eq!(theirs.program, Program::Rstream { tcp: true });
        assert_eq!(long.target, Target::AtMost(1.03));
        assert!(long.is_quick && !none.is_quick);
        assert_eq!((none.ours.size, none.ours.count), (0, 200));
        assert_eq!(none.target, Target::AtLeast(5.0));
        assert_eq!(alone.theirs, None);
        assert!(add(&mut pairs, "one way", "rdmsg evnet / perftest: 1").is_err());
        assert!(add(&mut pairs, "two ways", line).is_err());
    }
}
