use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::measure::{Measure, bytes, value_name};

/// A method of measuring.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
pub(crate) enum Part {
    /// Counts the instructions of both ends and of the kernel, in a guest.
    Counted,
    /// Counts the instructions of one process with callgrind.
    Instructions,
    /// Measures by the clock, with all programs on one processor.
    OneProcessor,
    /// Measures by the clock, while other processes load all processors.
    Loaded,
    /// Measures by the clock, on idle processors.
    Free,
    /// Measures by the clock, between two hosts with a slow network between them.
    Hosts,
}

/// A row of the table: the figures of one of our programs, and in most rows the figures of another
/// program for comparison.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) part: Part,
    pub(crate) measure: Measure,
    /// The message size in bytes, or 0 if no messages are measured.
    pub(crate) size: usize,
    pub(crate) ours: Side,
    /// The program for comparison, which can also be rdmsg used in a different way. `None` if there
    /// is no comparison.
    pub(crate) theirs: Option<Side>,
    pub(crate) target: Target,
}

/// One of the programs in a row, with its figures.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Side {
    pub(crate) name: String,
    /// The figures, one per round.
    pub(crate) figures: Vec<f64>,
}

/// The target of a row. If the row has no comparison or the measure has absolute targets, the
/// target limits our figure. In all other rows, it limits the ratio of our figure to theirs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Target {
    /// No target.
    None,
    AtMost(f64),
    AtLeast(f64),
}

impl Side {
    pub(crate) fn new(name: String) -> Self {
        let figures = Vec::new();
        Self { name, figures }
    }
}

impl Row {
    /// Returns the name that identifies the row in messages and in the budget.
    pub(crate) fn name(&self) -> String {
        let theirs = self.theirs.as_ref().map(|side| &*side.name);
        name(self.measure, self.size, &self.ours.name, theirs)
    }

    /// Returns the values to compare with the target, one per round, in ascending order. The values
    /// are our figures if there is no comparison or the measure has absolute targets. In all other
    /// rows, the values are the ratios of our figures to theirs.
    pub(crate) fn values(&self) -> Vec<f64> {
        let ratios = self
            .ratios()
            .filter(|_| !self.measure.has_absolute_targets());
        ratios.unwrap_or_else(|| sorted(&self.ours.figures))
    }

    /// Returns the ratios of ours to theirs, one per round, in ascending order. Returns `None` if
    /// there is no comparison.
    pub(crate) fn ratios(&self) -> Option<Vec<f64>> {
        let theirs = &self.theirs.as_ref()?.figures;
        let pairs = self.ours.figures.iter().zip(theirs);
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
        Some(sorted(&ratios))
    }

    /// Returns the numbers of rounds that meet the target, and of all rounds.
    fn met(&self) -> (usize, usize) {
        let met = |value: &&f64| match self.target {
            Target::None => true,
            Target::AtMost(limit) => **value <= limit,
            Target::AtLeast(limit) => **value >= limit,
        };
        let values = self.values();
        (values.iter().filter(met).count(), values.len())
    }

    /// Returns true if no round meets the target.
    pub(crate) fn is_missed(&self) -> bool {
        self.met().0 == 0
    }

    /// Returns the target and whether it is met, missed, or undecided because the rounds differ.
    pub(crate) fn verdict(&self) -> String {
        let target = self.target;
        let word = match self.met() {
            _ if target == Target::None => return target.to_string(),
            (0, _) => "MISSED",
            (met, all) if met == all => "met",
            _ => "undecided",
        };
        match self.values()[..] {
            [low, .., high] => format!("{target} {word}: {low:.2} … {high:.2}"),
            _ => format!("{target} {word}"),
        }
    }
}

/// Returns the measure, followed by the size if there is one.
pub(crate) fn kind(measure: Measure, size: usize) -> String {
    match size {
        0 => measure.to_string(),
        size => format!("{measure}, {}", bytes(size)),
    }
}

/// Returns the name of the row that compares these programs.
pub(crate) fn name(measure: Measure, size: usize, ours: &str, theirs: Option<&str>) -> String {
    let theirs = theirs.map_or_else(String::new, |theirs| format!(" / {theirs}"));
    format!("{}: {ours}{theirs}", kind(measure, size))
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&value_name(self))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::AtMost(limit) => write!(f, "≤ {limit}"),
            Self::AtLeast(limit) => write!(f, "≥ {limit}"),
        }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the median, or `None` if there are no values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let values = sorted(values);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Returns a row that compares half round trips of 64 B.
    pub(crate) fn row(ours: &[f64], theirs: &[f64], target: Target) -> Row {
        let side = |name: &str, figures: &[f64]| Side {
            name: name.to_owned(),
            figures: figures.to_vec(),
        };
        Row {
            part: Part::Free,
            measure: Measure::HalfRoundTrip,
            size: 64,
            ours: side("rdmsg busy", ours),
            theirs: Some(side("ib_send_lat -R", theirs)),
            target,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::row, *};

    #[test]
    fn ratio_is_of_the_same_round() {
        // In the second round, the machine was half as fast.
        let row = row(&[9.0, 18.0, 9.0], &[10.0, 20.0, 10.0], Target::AtMost(0.9));
        assert_eq!(row.values(), [0.9; 3]);
        assert_eq!(row.verdict(), "≤ 0.9 met: 0.90 … 0.90");
        assert_eq!(
            row.name(),
            "half round trip, 64 B: rdmsg busy / ib_send_lat -R"
        );
    }

    #[test]
    fn memory_is_compared_with_an_absolute_target() {
        let mut row = row(&[40.0], &[4.0], Target::AtMost(12.0));
        row.measure = Measure::IdleMemory;
        assert_eq!((row.values(), row.ratios()), (vec![40.0], Some(vec![10.0])));
        assert_eq!(row.verdict(), "≤ 12 MISSED");
    }

    #[test]
    fn rounds_that_differ_decide_nothing() {
        let verdict = |ours: &[f64]| row(ours, &[10.0; 3], Target::AtMost(0.9)).verdict();
        assert_eq!(verdict(&[8.0, 8.5, 9.0]), "≤ 0.9 met: 0.80 … 0.90");
        assert_eq!(verdict(&[8.0, 8.5, 9.5]), "≤ 0.9 undecided: 0.80 … 0.95");
        assert_eq!(verdict(&[9.1, 9.5]), "≤ 0.9 MISSED: 0.91 … 0.95");
        assert_eq!(row(&[1.0], &[1.0], Target::None).verdict(), "-");
        let mut alone = row(&[150.0], &[], Target::AtLeast(100.0));
        alone.theirs = None;
        assert_eq!(alone.verdict(), "≥ 100 met");
    }

    #[test]
    fn median_does_not_depend_on_the_order() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
