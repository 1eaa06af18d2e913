//! The plan: the programs to compare and the targets, parsed from `rows.txt`.

use anyhow::{Context, Result};
use clap::ValueEnum;
use toolbox::sections;

use crate::{
    measure::Measure,
    program::{Program, Run},
    row::{Target, kind},
};

/// Two runs to compare.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) ours: Run,
    pub(crate) theirs: Run,
    /// The target for the ratio of `ours` to `theirs`.
    pub(crate) target: Target,
}

/// Returns the comparisons of a part. If `quick` is set, returns only the comparisons that are
/// marked with a star in `rows.txt`.
pub(crate) fn pairs(part: &str, quick: bool) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for (title, lines) in sections(include_str!("../rows.txt")) {
        let (parts, measure) = title.split_once(": ").context(title)?;
        if !parts.split(", ").any(|one| one == part) {
            continue;
        }
        let start = pairs.len();
        for line in lines {
            add(&mut pairs, measure, line, quick).with_context(|| line.to_owned())?;
        }
        pairs[start..].sort_by_key(|pair| pair.ours.size);
    }
    Ok(pairs)
}

/// Keeps only the comparisons whose name contains one of the texts in `only`. If `only` is empty,
/// keeps all comparisons. The budget uses the same names for its rows.
pub(crate) fn select(pairs: &mut Vec<Pair>, only: &[String]) {
    pairs.retain(|pair| {
        let name = pair.name();
        only.is_empty() || only.iter().any(|text| name.contains(text))
    });
}

impl Pair {
    fn name(&self) -> String {
        let Self { ours, theirs, .. } = self;
        let kind = kind(ours.measure, ours.size);
        format!("{kind}: {} / {}", ours.name(), theirs.name())
    }
}

/// Parses a line of `rows.txt`, and adds its comparisons.
fn add(pairs: &mut Vec<Pair>, measure: &str, line: &str, quick: bool) -> Result<()> {
    let measure = Measure::from_str(measure, false).map_err(anyhow::Error::msg)?;
    let (ours, rest) = line.split_once(" / ").context("only one program")?;
    let (theirs, cells) = rest.split_once(": ").context("no sizes")?;
    let programs: [Program; 2] = [ours.parse()?, theirs.parse()?];
    for cell in cells.split(' ') {
        let (is_quick, cell) = match cell.strip_prefix('*') {
            Some(cell) => (true, cell),
            None => (false, cell),
        };
        if quick && !is_quick {
            continue;
        }
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
        let [ours, theirs] = programs.map(|program| Run {
            program,
            measure,
            size,
            count,
        });
        pairs.push(Pair {
            ours,
            theirs,
            target,
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
    for run in pairs.iter().flat_map(|pair| match pair.ours.measure {
        Measure::Connect => [pair.ours, pair.theirs],
        _ => [pair.theirs, pair.ours],
    }) {
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manner::Way;

    fn all() -> Vec<Vec<Pair>> {
        let parts = [
            ("counted", true),
            ("counted", false),
            ("instructions", false),
            ("hosts", false),
            ("many", false),
            ("polling counted", false),
            ("polling one-processor", false),
            ("polling loaded", false),
            ("polling free", false),
            ("polling free rdma", false),
        ];
        let found = parts.map(|(part, quick)| pairs(part, quick).unwrap());
        assert!(found.iter().all(|pairs| !pairs.is_empty()));
        assert!(
            found[0].len() < found[1].len(),
            "the quick plan must be shorter"
        );
        found.into()
    }

    #[test]
    fn pairs_are_of_a_kind() {
        for pair in all().iter().flatten() {
            let (ours, theirs) = (&pair.ours, &pair.theirs);
            assert_eq!((ours.size, ours.count), (theirs.size, theirs.count));
            assert_eq!(ours.measure, theirs.measure);
            let Program::Rdmsg(manner) = ours.program else {
                panic!("{ours}")
            };
            assert!(manner.batch == 1 || ours.measure == Measure::OneWay);
        }
    }

    #[test]
    fn counted_programs_sleep() {
        let [_, counted, _, _, _, polling, ..] = &all()[..] else {
            panic!()
        };
        for run in runs(&[&counted[..], &polling[..]].concat()) {
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
        let all = pairs("many", false).unwrap();
        let selected = |only: &[&str]| {
            let mut pairs = all.clone();
            select(
                &mut pairs,
                &only
                    .iter()
                    .map(|text| (*text).to_owned())
                    .collect::<Vec<_>>(),
            );
            pairs
        };
        assert_eq!(selected(&[]).len(), all.len());
        let one = selected(&["half round trip, 64 B: rdmsg event tcp tasks ×100 / codec ×100"]);
        assert_eq!(one.len(), 1);
        assert!(selected(&["descriptors", "memory"]).len() > 3);
        assert!(selected(&["no such row"]).is_empty());
    }

    #[test]
    fn lines_have_sizes_counts_and_targets() {
        let mut pairs = Vec::new();
        let line = "rdmsg event tcp / rstream tcp: 1 *64K≤1.03 *0×200≥5";
        add(&mut pairs, "one way", line, true).unwrap();
        let [long, none] = pairs[..] else {
            panic!("{pairs:?}")
        };
        assert_eq!((long.ours.size, long.ours.count), (64 << 10, 500));
        assert_eq!(long.theirs.program, Program::Rstream { tcp: true });
        assert_eq!(long.target, Target::AtMost(1.03));
        assert_eq!((none.ours.size, none.theirs.count), (0, 200));
        assert_eq!(none.target, Target::AtLeast(5.0));
        assert!(add(&mut pairs, "one way", "rdmsg evnet / perftest: 1", false).is_err());
        assert!(add(&mut pairs, "two ways", line, false).is_err());
    }
}
