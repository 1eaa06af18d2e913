//! What was found, for people.

use std::fmt;

use crate::{
    plan::{Pair, Plan},
    program::Run,
    results::Results,
    samples::Samples,
    traffic::Test,
};

/// How many targets there are and what came of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) met: u32,
    pub(crate) missed: u32,
    pub(crate) unknown: u32,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "targets: {} met, {} not met", self.met, self.missed)?;
        if self.unknown > 0 {
            write!(f, ", {} not measured", self.unknown)?;
        }
        Ok(())
    }
}

/// Prints a line for each pair, latencies first.
pub(crate) fn print(plan: &Plan, results: &[Results]) -> Summary {
    let mut summary = Summary::default();
    for (test, title) in [
        (Test::Latency, "half round trip, µs: less is better"),
        (Test::Bandwidth, "one way: more is better"),
    ] {
        println!("\n{title}");
        println!(
            "  {:>7}  {:<14} {:>30}  {:<18} {:>30}  {:>5}  target",
            "size", "theirs", "", "ours", "", "ratio"
        );
        for pair in plan
            .pairs
            .iter()
            .filter(|pair| plan.runs[pair.ours].test == test)
        {
            println!("{}", line(plan, results, pair, &mut summary));
        }
    }
    summary
}

fn line(plan: &Plan, results: &[Results], pair: &Pair, summary: &mut Summary) -> String {
    let (theirs, ours) = (&plan.runs[pair.theirs], &plan.runs[pair.ours]);
    let unit = Unit::of(theirs);
    let (their, our) = results[pair.theirs].common(&results[pair.ours]);
    let ratio = our
        .median()
        .zip(their.median())
        .map(|(ours, theirs)| ours / theirs);
    let verdict = match ratio.map(|ratio| pair.target.met_by(ratio)) {
        Some(Some(true)) => {
            summary.met += 1;
            "met"
        }
        Some(Some(false)) => {
            summary.missed += 1;
            "NOT MET"
        }
        Some(None) => "",
        None => {
            summary.unknown += 1;
            "NOT MEASURED"
        }
    };
    let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    format!(
        "  {:>7}  {:<14} {:>30}  {:<18} {:>30}  {ratio:>5}  {:<8} {verdict}",
        size(theirs.size),
        theirs.name(),
        unit.show(their),
        ours.name(),
        unit.show(our),
        pair.target.to_string(),
    )
    .trim_end()
    .to_owned()
}

/// What figures are shown in.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Micros,
    /// Thousand messages a second.
    Rate,
    /// MiB a second, of messages of so many bytes.
    Bandwidth(usize),
}

impl Unit {
    fn of(run: &Run) -> Self {
        match run.test {
            Test::Latency => Self::Micros,
            Test::Bandwidth if run.size < 4096 => Self::Rate,
            Test::Bandwidth => Self::Bandwidth(run.size),
        }
    }

    fn show(self, samples: &Samples) -> String {
        let Some((median, (min, max))) = samples.median().zip(samples.spread()) else {
            return "-".to_owned();
        };
        let (factor, name) = match self {
            Self::Micros => (1.0, "µs"),
            Self::Rate => (1e-3, "k/s"),
            Self::Bandwidth(size) => (size as f64 / f64::from(1 << 20), "MiB/s"),
        };
        format!(
            "{:.1} [{:.1} .. {:.1}] {name}",
            median * factor,
            min * factor,
            max * factor
        )
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Reading;

    #[test]
    fn a_line_has_both_sides_the_ratio_and_the_verdict() {
        let plan = Plan::new(true);
        let mut results = vec![Results::default(); plan.runs.len()];
        let pair = plan.pairs[0];
        for (theirs, ours) in [(10.0, 11.0), (12.0, 13.0), (11.0, 12.1)] {
            let reading = |median| {
                Some(Reading::Latency {
                    median: Some(median),
                    mean: 99.0,
                })
            };
            results[pair.theirs].add(reading(theirs));
            results[pair.ours].add(reading(ours));
        }
        let mut summary = Summary::default();
        let words: Vec<_> = line(&plan, &results, &pair, &mut summary)
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        assert_eq!(
            words.join(" "),
            "64 B ib_send_lat -R 11.0 [10.0 .. 12.0] µs rdmsg busy 12.1 [11.0 .. 13.0] µs 1.10 <= 1.15 met"
        );
        assert_eq!(summary.met, 1);
    }

    #[test]
    fn what_failed_counts_as_not_measured() {
        let plan = Plan::new(true);
        let results = vec![Results::default(); plan.runs.len()];
        let mut summary = Summary::default();
        let line = line(&plan, &results, &plan.pairs[0], &mut summary);
        assert!(line.ends_with("-  <= 1.15  NOT MEASURED"), "{line}");
        assert_eq!(
            summary.to_string(),
            "targets: 0 met, 0 not met, 1 not measured"
        );
    }

    #[test]
    fn figures_have_their_unit() {
        let mut samples = Samples::default();
        samples.push(2000.0);
        assert_eq!(Unit::Rate.show(&samples), "2.0 [2.0 .. 2.0] k/s");
        assert_eq!(
            Unit::Bandwidth(64 << 10).show(&samples),
            "125.0 [125.0 .. 125.0] MiB/s"
        );
    }
}
