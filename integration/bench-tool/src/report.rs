//! What was found: one table of all parts, as Markdown and JSON, and the tables of a page.

use std::{
    fmt::Write,
    fs, iter,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    conduct::Outcome,
    measure::bytes,
    row::{Part, Row, Side, median},
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

/// What this program was compiled with.
pub(crate) const BUILT_BY: &str = env!("BUILT_BY");

/// The page that shows tables to readers. Each is between two comments: `<!-- table NAME -->` and
/// `<!-- end -->`.
const PAGE: &str = "docs/performance.md";

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            built_by: BUILT_BY,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.broken |= outcome.broken;
        self.kernel = outcome.kernel;
        self.notes.extend(outcome.notes);
        self.missing.extend(outcome.missing);
        self.rows.extend(outcome.rows);
    }

    pub(crate) fn note(&mut self, note: String) {
        eprintln!("bench: {note}");
        self.notes.push(note);
    }

    pub(crate) fn lacks(&mut self, what: String) {
        self.missing.push(what);
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

    /// The whole of it as Markdown, which reads well as it is.
    pub(crate) fn markdown(&self) -> String {
        let title = [
            "part", "measure", "size", "ours", "", "theirs", "", "ratio", "target",
        ];
        let lines: Vec<_> = iter::once(title.map(str::to_owned))
            .chain(iter::once([const { String::new() }; 9]))
            .chain(self.rows.iter().map(cells))
            .collect();
        let mut text = String::new();
        for (place, line) in lines.iter().enumerate() {
            for (column, cell) in line.iter().enumerate() {
                let widths = lines.iter().map(|line| line[column].chars().count());
                let width = widths.max().unwrap_or(0);
                // Writing to a string does not fail.
                let _ = match place {
                    1 => write!(text, "| {:-<width$} ", ""),
                    _ => write!(text, "| {cell:<width$} "),
                };
            }
            text += "|\n";
        }
        let _ = writeln!(text, "\nBuilt by {}.", self.built_by);
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

    /// Writes everything to files, and says where.
    pub(crate) fn write(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(folder)?;
        let texts = [
            ("bench.md", self.markdown()),
            ("bench.json", serde_json::to_string_pretty(self)?),
        ];
        let files = texts.map(|(name, text)| (folder.join(name), text));
        for (file, text) in &files {
            fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(files.map(|(file, _)| file).to_vec())
    }

    /// Writes the table of this name to the page, with the rows of these parts.
    pub(crate) fn write_page(&self, name: &str, parts: &[Part]) -> Result<()> {
        let page = fs::read_to_string(PAGE).with_context(|| format!("cannot read {PAGE}"))?;
        let rows = self.rows.iter().filter(|row| parts.contains(&row.part));
        let page = with_table(&page, name, &table(rows, parts.len() > 1))?;
        fs::write(PAGE, page).with_context(|| format!("cannot write {PAGE}"))?;
        println!("bench: {PAGE}, table {name}");
        Ok(())
    }
}

/// The page with this table between its two comments.
fn with_table(page: &str, name: &str, table: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- table {name} -->\n"), "<!-- end -->");
    let parts = page.split_once(&begin).and_then(|(before, rest)| {
        let (old, after) = rest.split_once(end)?;
        (!old.contains("<!--")).then_some((before, after))
    });
    let (before, after) = parts.with_context(|| {
        format!(
            "{PAGE} has no line {:?} with {end:?} below it",
            begin.trim()
        )
    })?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

/// A table for readers, narrow enough for a page. As everything that is counted sleeps, names do
/// not say so in a table of one part.
fn table<'a>(rows: impl Iterator<Item = &'a Row>, of_parts: bool) -> String {
    let part = if of_parts { "| part " } else { "" };
    let rule = if of_parts { "|---" } else { "" };
    let mut text =
        format!("{part}| | ours | | theirs | | ratio |\n{rule}|---|---|---|---|---|---|\n");
    let short = |name: &str| match name.strip_prefix("rdmsg") {
        Some("") => "default".to_owned(),
        Some(" event") => "event".to_owned(),
        Some(name) if of_parts => name.trim().to_owned(),
        Some(name) => name.trim().trim_start_matches("event ").to_owned(),
        None => name.to_owned(),
    };
    for row in rows {
        let [part, measure, size, ours, figure, theirs, their_figure, ..] = cells(row);
        let part = if of_parts {
            format!("| {part} ")
        } else {
            String::new()
        };
        let (ours, theirs) = (short(&ours), short(&theirs));
        let ratio = row.theirs.as_ref().and_then(|_| median(&row.values()));
        let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        text += &format!(
            "{part}| {measure}, {size} | {ours} | {figure} | {theirs} | {their_figure} | {ratio} |\n"
        );
    }
    text
}

fn cells(row: &Row) -> [String; 9] {
    let figure = |side: &Side| {
        let figure = median(&side.figures);
        figure.map_or_else(String::new, |figure| row.measure.show(row.size, figure))
    };
    let values = row.values();
    let ratio = match (&row.theirs, &values[..]) {
        (Some(_), [low, .., high]) if low < high => {
            let ratio = median(&values).unwrap_or(f64::NAN);
            format!("{ratio:.2} [{low:.2} … {high:.2}]")
        }
        (Some(_), [ratio, ..]) => format!("{ratio:.3}"),
        _ => String::new(),
    };
    let theirs = row.theirs.as_ref();
    [
        row.part.to_string(),
        row.measure.to_string(),
        bytes(row.size),
        row.ours.name.clone(),
        figure(&row.ours),
        theirs.map_or_else(String::new, |theirs| theirs.name.clone()),
        theirs.map_or_else(String::new, figure),
        ratio,
        row.verdict(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Target, testing::row};

    #[test]
    fn line_has_both_sides_ratio_and_verdict() {
        let met = row(&[8.0, 8.5, 8.9], &[10.0; 3], Target::AtMost(0.9));
        let expected = [
            "free",
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
    fn report_is_a_table_and_what_is_not_in_it() {
        let mut report = Report::new();
        report.add(Outcome {
            rows: vec![row(&[9.1], &[10.0], Target::AtMost(0.9))],
            missing: vec!["free: valgrind is not installed".to_owned()],
            ..Outcome::default()
        });
        let text = report.markdown();
        let lines: Vec<&str> = text.lines().collect();
        let width = lines[0].chars().count();
        let table = &lines[..3];
        assert!(
            table.iter().all(|line| line.chars().count() == width),
            "{text}"
        );
        assert!(lines[2].contains("≤ 0.9 MISSED"), "{text}");
        assert!(text.contains("* free: valgrind is not"), "{text}");
    }

    #[test]
    fn page_keeps_all_but_the_table() {
        let page = "one\n<!-- table a -->\n| old |\n<!-- end -->\ntwo\n<!-- table b -->\n";
        let new = with_table(page, "a", "| new |\n").unwrap();
        assert_eq!(new, page.replace("old", "new"));
        for (page, name) in [(page, "b"), (page, "c")] {
            let error = with_table(page, name, "").unwrap_err().to_string();
            assert!(error.contains(&format!("<!-- table {name} -->")), "{error}");
        }
        let unclosed = "<!-- table b -->\n<!-- table a -->\n<!-- end -->\n";
        assert!(with_table(unclosed, "b", "").is_err());
    }

    #[test]
    fn table_of_a_page_is_narrow() {
        let mut wide = row(&[2100.5], &[24.5], Target::None);
        wide.ours.name = "rdmsg event small shared event_fd ×1000".to_owned();
        wide.theirs.as_mut().unwrap().name = "rdmsg event small event_fd".to_owned();
        let text = table([&wide].into_iter(), false);
        assert!(
            text.contains("| small shared event_fd ×1000 | 2100.50 µs | small event_fd |"),
            "{text}"
        );
        wide.part = Part::OneProcessor;
        wide.measure = crate::measure::Measure::Sparse;
        wide.ours.name = "rdmsg busy tcp".to_owned();
        wide.theirs.as_mut().unwrap().name = "rdmsg event tcp".to_owned();
        let of_parts = table([&wide].into_iter(), true);
        assert!(
            of_parts.contains("| one-processor | processor time, 64 B | busy tcp |"),
            "{of_parts}"
        );
        for line in text.lines().chain(of_parts.lines()) {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
