//! The budget: the figures that were stored when the budget was last renewed. A change to the code
//! fails the check if a new figure is worse than the stored one by more than the factor [`SLACK`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    measure::Measure,
    report::{BUILT_BY, Report},
    row::{Row, Side, median},
};

/// The path of the file with the stored figures, relative to the root of the checkout.
pub(crate) const FILE: &str = "integration/bench-tool/budget.json";

/// The factor by which a figure may be worse than the stored one. When a measurement is repeated,
/// counts of instructions differ by less than 1 %.
const SLACK: f64 = 1.03;

/// The figures that were measured when the budget was last renewed.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Budget {
    /// The release series of the kernel in the guest. Figures from different series are not
    /// comparable: the RDMA driver of Linux 6.12 uses threads and the one of 6.1 does not, so every
    /// ratio differs.
    kernel: String,
    /// The results of the comparisons, measured with the clock that counts instructions. A result
    /// is rdmsg's figure divided by the other program's figure. For a measure with absolute
    /// targets, the result is rdmsg's figure. The map also contains the largest step of each sweep:
    /// see [`Measure::Step`].
    ratios: BTreeMap<String, f64>,
    /// The version and options of the compiler that built the measured program.
    built_by: String,
    /// The instruction count of each single call.
    instructions: BTreeMap<String, f64>,
}

impl Budget {
    /// Returns a budget with the measured figures.
    pub(crate) fn of(report: &Report) -> Self {
        let mut budget = Self {
            kernel: series(&report.kernel),
            built_by: BUILT_BY.to_owned(),
            ..Self::default()
        };
        let rows = &report.rows;
        for row in rows.iter().map(|row| against_perftest(row, rows)) {
            let Some(value) = median(&row.values()) else {
                continue;
            };
            // Round, so that only the significant digits are stored.
            let value = |digits: f64| (value * digits).round() / digits;
            if row.theirs.is_some() || row.measure == Measure::Step {
                budget.ratios.insert(key(&row), value(1000.0));
            } else if row.measure == Measure::Call {
                budget.instructions.insert(key(&row), value(1.0));
            }
        }
        budget
    }

    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file)
            .with_context(|| format!("cannot read {}: renew the budget", file.display()))?;
        Ok(serde_json::from_str(&text)?)
    }

    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        ensure!(
            !self.ratios.is_empty() && !self.instructions.is_empty(),
            "no ratio or no instruction count was measured, see above; the budget is unchanged"
        );
        fs::write(file, serde_json::to_string_pretty(self)? + "\n")?;
        Ok(())
    }

    /// Compares each figure with the stored one and prints both. Returns the names of the figures
    /// that are worse than the stored ones by more than [`SLACK`], were not measured, or are not
    /// stored. Omits the ratios if the kernel differs, and the instruction counts if the compiler
    /// differs.
    pub(crate) fn judge(&self, kept: &Self) -> Vec<String> {
        let same = |worse, kind: &str, on: &str, kept_on: &str| {
            if on == kept_on {
                return worse;
            }
            println!("these {kind} are not judged: stored for {kept_on}, measured on {on}");
            Vec::new()
        };
        let ratios = compare(&self.ratios, &kept.ratios);
        let mut over = same(ratios, "ratios", &self.kernel, &kept.kernel);
        let calls = compare(&self.instructions, &kept.instructions);
        over.extend(same(calls, "instructions", &self.built_by, &kept.built_by));
        over
    }
}

/// Returns the release series of a kernel, which is the first two numbers of its version.
fn series(kernel: &str) -> String {
    let numbers: Vec<&str> = kernel.split('.').take(2).collect();
    format!("Linux {}", numbers.join("."))
}

/// If the row compares rdmsg with rdmsg, replaces `theirs` with a program other than rdmsg, because
/// the ratio of two figures of rdmsg does not change if both become worse by the same factor. The
/// new `theirs` comes from another row with the same measure and size, preferably from a row whose
/// `ours` is the old `theirs`. Returns any other row unchanged, and also a row for which no such
/// program was measured.
fn against_perftest(row: &Row, rows: &[Row]) -> Row {
    let is_ours = |side: &Side| side.name.starts_with("rdmsg");
    let mut row = row.clone();
    if row.theirs.as_ref().is_some_and(is_ours) {
        let mut others = rows.iter().filter(|other| {
            (other.measure, other.size) == (row.measure, row.size)
                && other.theirs.as_ref().is_some_and(|theirs| !is_ours(theirs))
        });
        let first = others.clone().next();
        let of_theirs = others.find(|other| row.theirs.as_ref() == Some(&other.ours));
        if let Some(other) = of_theirs.or(first) {
            row.theirs.clone_from(&other.theirs);
        }
    }
    row
}

/// Returns the name of a row in the budget. The name of a rate has a suffix to indicate that more
/// is better.
fn key(row: &Row) -> String {
    let more = if row.measure.is_rate() { MORE } else { "" };
    row.name() + more
}

const MORE: &str = " (more is better)";

fn compare(now: &BTreeMap<String, f64>, kept: &BTreeMap<String, f64>) -> Vec<String> {
    let names: BTreeSet<&String> = now.keys().chain(kept.keys()).collect();
    let mut over = Vec::new();
    for name in names {
        let (now, kept) = (now.get(name), kept.get(name));
        let worse = now.zip(kept).map(|(now, kept)| match name.ends_with(MORE) {
            true => kept / now,
            false => now / kept,
        });
        let verdict = match worse {
            Some(by) if by > SLACK => &format!("OVER THE BUDGET: {by:.3} times as bad"),
            Some(by) if by < 1.0 / SLACK => "better: renew the budget",
            Some(_) => "ok",
            None => "UNKNOWN: not measured, or not in the budget",
        };
        let show = |figure: Option<&f64>| figure.map_or_else(|| "-".to_owned(), f64::to_string);
        println!("{:>8} -> {:>8}  {name}: {verdict}", show(kept), show(now));
        if worse.is_none_or(|by| by > SLACK) {
            over.push(name.clone());
        }
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Target, testing::row};

    fn budget(ratios: &[(&str, f64)], instructions: f64) -> Budget {
        let ratios = ratios
            .iter()
            .map(|(name, figure)| ((*name).to_owned(), *figure));
        Budget {
            kernel: series("6.1.0-56-amd64"),
            built_by: "a compiler".to_owned(),
            ratios: ratios.collect(),
            instructions: [("send".to_owned(), instructions)].into(),
        }
    }

    #[test]
    fn row_slower_than_slack_exceeds_budget() {
        let rate = "one way (more is better)";
        let kept = budget(&[("round trip", 1.0), (rate, 1.0)], 500.0);
        let judge = |trip, rate_now, send| {
            budget(&[("round trip", trip), (rate, rate_now)], send).judge(&kept)
        };
        assert!(judge(1.029, 0.98, 510.0).is_empty());
        assert_eq!(judge(1.04, 0.98, 510.0), ["round trip"]);
        assert_eq!(judge(0.5, 0.96, 510.0), [rate]);
        assert_eq!(judge(0.5, 2.0, 516.0), ["send"]);
    }

    #[test]
    fn own_variant_is_compared_with_stock_program() {
        let stock = row(&[9.0], &[10.0], Target::None);
        let mut ours = row(&[12.0], &[9.0], Target::None);
        ours.theirs.as_mut().unwrap().name = "rdmsg small".to_owned();
        let rows = [stock.clone(), ours];
        assert_eq!(against_perftest(&rows[1], &rows).theirs, stock.theirs);
        assert_eq!(against_perftest(&rows[0], &rows), stock);
    }

    #[test]
    fn stock_program_of_the_other_way_comes_first() {
        let stock = row(&[9.0], &[10.0], Target::None);
        let mut tcp = row(&[7.0], &[8.0], Target::None);
        tcp.ours.name = "rdmsg tcp".to_owned();
        let mut ours = row(&[12.0], &[7.0], Target::None);
        ours.theirs = Some(tcp.ours.clone());
        let rows = [stock, tcp.clone(), ours];
        assert_eq!(against_perftest(&rows[2], &rows).theirs, tcp.theirs);
    }

    #[test]
    fn missing_row_on_either_side_exceeds_budget() {
        let one = budget(&[("one", 1.0)], 500.0);
        let two = budget(&[("one", 1.0), ("two", 1.0)], 500.0);
        assert_eq!(one.judge(&two), ["two"]);
        assert_eq!(two.judge(&one), ["two"]);
    }

    #[test]
    fn other_compiler_or_kernel_is_not_judged() {
        let kept = budget(&[("round trip", 1.0)], 500.0);
        let worse = || budget(&[("round trip", 2.0)], 900.0);
        let now = Budget {
            built_by: "another".to_owned(),
            ..worse()
        };
        assert_eq!(now.judge(&kept), ["round trip"]);
        let now = Budget {
            kernel: series("6.12.1"),
            ..worse()
        };
        assert_eq!(now.judge(&kept), ["send"]);
    }
}
