//! What was found: one table of all parts, as text, Markdown and JSON, and plots.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    conduct::Outcome,
    measure::bytes,
    part::Part,
    plot,
    row::{Row, Verdict},
};

/// Everything that was measured, in one run of the tool.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// With what the programs were built.
    built_by: &'static str,
    /// Of the host where the last part was measured.
    kernel: String,
    rows: Vec<Row>,
    missing: Vec<String>,
    notes: Vec<String>,
    /// Whether something of ours was not measured.
    #[serde(skip)]
    pub(crate) broken: bool,
}

const COLUMNS: [&str; 9] = [
    "part", "measure", "size", "ours", "", "theirs", "", "ratio", "target",
];

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            built_by: BUILT_BY,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, part: Part, outcome: Outcome) {
        let Outcome {
            rows,
            missing,
            notes,
            place,
            kernel,
            broken,
        } = outcome;
        self.broken |= broken;
        self.notes
            .push(format!("{part}: on {place}, Linux {kernel}"));
        self.kernel = kernel;
        self.notes.extend(notes);
        self.missing
            .extend(missing.into_iter().map(|what| format!("{part}: {what}")));
        self.rows.extend(rows);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn lacks(&mut self, what: impl Into<String>) {
        self.missing.push(what.into());
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn kernel(&self) -> &str {
        &self.kernel
    }

    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }

    pub(crate) fn has(&self, verdict: Verdict) -> bool {
        self.rows.iter().any(|row| row.verdict() == verdict)
    }

    /// The whole of it as Markdown, which reads well as it is.
    pub(crate) fn markdown(&self) -> String {
        let lines: Vec<[String; 9]> = self.rows.iter().map(cells).collect();
        let widths: [usize; 9] = std::array::from_fn(|column| {
            let cells = lines.iter().map(|line| line[column].chars().count());
            cells.chain([COLUMNS[column].len()]).max().unwrap_or(0)
        });
        let mut text = String::new();
        let mut line = |cells: [&str; 9], fill: char| {
            for (cell, width) in cells.into_iter().zip(widths) {
                let rest = width - cell.chars().count();
                let rest: String = std::iter::repeat_n(fill, rest).collect();
                let _ = write!(text, "| {cell}{rest} ");
            }
            text.push_str("|\n");
        };
        line(COLUMNS, ' ');
        line([""; 9], '-');
        for cells in &lines {
            line(cells.each_ref().map(String::as_str), ' ');
        }
        let _ = writeln!(text, "\n{}", self.summary());
        for (title, lines) in [("Not measured", &self.missing), ("Notes", &self.notes)] {
            if !lines.is_empty() {
                let _ = writeln!(text, "\n{title}:\n");
            }
            for line in lines {
                let _ = writeln!(text, "* {}", line.replace('\n', " "));
            }
        }
        text
    }

    fn summary(&self) -> String {
        let mut counts = BTreeMap::new();
        for row in &self.rows {
            *counts.entry(row.verdict().to_string()).or_insert(0) += 1;
        }
        counts.remove("");
        let counts: Vec<_> = counts
            .iter()
            .map(|(what, n)| format!("{n} {what}"))
            .collect();
        format!(
            "Targets: {}. Built by {}.",
            counts.join(", "),
            self.built_by
        )
    }

    /// Writes everything to files, and says where.
    pub(crate) fn write(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(folder)?;
        let mut files = Vec::new();
        for (name, text) in [
            ("bench.md", self.markdown()),
            ("bench.json", serde_json::to_string_pretty(self)?),
        ] {
            let file = folder.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            files.push(file);
        }
        files.extend(plot::draw_all(&self.rows, folder)?);
        Ok(files)
    }
}

/// What this program was compiled with.
pub(crate) const BUILT_BY: &str = env!("BUILT_BY");

fn cells(row: &Row) -> [String; 9] {
    let part = match row.hosts {
        1 => row.part.to_string(),
        hosts => format!("{}, {hosts} hosts", row.part),
    };
    let figure = |figures: &[f64]| {
        let median = crate::samples::Samples::new(figures.iter().copied()).median();
        median.map_or_else(String::new, |figure| row.measure.show(row.size, figure))
    };
    let values = row.values();
    let ratio = match (&row.theirs, values.median(), values.interval()) {
        (Some(_), Some(ratio), Some((low, high))) if low < high => {
            format!("{ratio:.2} [{low:.2} … {high:.2}]")
        }
        (Some(_), Some(ratio), _) => format!("{ratio:.3}"),
        _ => String::new(),
    };
    let theirs = row.theirs.as_ref();
    let target = format!("{} {}", row.target, row.verdict());
    [
        part,
        row.measure.to_string(),
        bytes(row.size),
        row.ours.name.clone(),
        figure(&row.ours.figures),
        theirs.map_or_else(String::new, |theirs| theirs.name.clone()),
        theirs.map_or_else(String::new, |theirs| figure(&theirs.figures)),
        ratio,
        target.trim_end().to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{row::testing::row, target::Target};

    #[test]
    fn a_line_has_both_sides_the_ratio_and_the_verdict() {
        let met = row(&[8.0, 8.5, 8.9], &[10.0; 3], Target::AtMost(0.9));
        let expected = [
            "clock",
            "half round trip",
            "64 B",
            "rdmsg busy",
            "8.50 µs",
            "ib_send_lat -R",
            "10.00 µs",
            "0.85 [0.80 … 0.89]",
            "≤ 0.9 met",
        ];
        assert_eq!(cells(&met), expected);
        let counted = row(&[9.1], &[10.0], Target::None);
        assert_eq!(cells(&counted)[7..], ["0.910", "-"]);
    }

    #[test]
    fn a_report_is_one_table_and_what_is_not_in_it() {
        let mut report = Report::new();
        let outcome = Outcome {
            rows: vec![row(&[9.1], &[10.0], Target::AtMost(0.9))],
            missing: vec!["qperf: it is not installed".to_owned()],
            notes: Vec::new(),
            place: "rxe0".to_owned(),
            kernel: "6.1.0".to_owned(),
            broken: false,
        };
        report.add(Part::Clock, outcome);
        assert!(report.has(Verdict::Missed));
        let text = report.markdown();
        let lines: Vec<&str> = text.lines().collect();
        let width = lines[0].chars().count();
        assert!(
            lines[..3].iter().all(|line| line.chars().count() == width),
            "{text}"
        );
        assert!(text.contains("Targets: 1 MISSED."), "{text}");
        assert!(
            text.contains("* clock: qperf: it is not installed"),
            "{text}"
        );
    }
}
