//! The report: one table with the results of all parts, and the tables of a Markdown page.

use std::{fs, iter, ops::Range};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{
    row::{Part, Row, Side, kind, median},
    sweep::{self, Sweep},
};

/// The results of one part or of several parts.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Report {
    /// The kernel release of the host on which the last part was measured.
    pub(crate) kernel: String,
    pub(crate) rows: Vec<Row>,
    /// The sweeps, in the order in which they were measured.
    pub(crate) sweeps: Vec<Sweep>,
    /// The missing measurements, each with the reason.
    pub(crate) missing: Vec<String>,
    /// Notes that are printed below the table.
    pub(crate) notes: Vec<String>,
    /// Whether one of our programs has failed.
    pub(crate) broken: bool,
}

/// The version and the options of the compiler that built this program.
pub(crate) const BUILT_BY: &str = env!("BUILT_BY");

/// The Markdown page that contains the tables, each between the comments `<!-- table NAME -->` and
/// `<!-- end -->`.
const PAGE: &str = "docs/performance.md";

impl Report {
    /// Appends the results of another part.
    pub(crate) fn add(&mut self, part: Self) {
        self.broken |= part.broken;
        self.kernel = part.kernel;
        self.notes.extend(part.notes);
        self.missing.extend(part.missing);
        self.rows.extend(part.rows);
        self.sweeps.extend(part.sweeps);
    }

    /// Prints the table as Markdown, and then the missing measurements and the notes.
    pub(crate) fn print(&self) {
        print_table(&lines(self.rows.iter(), 0..TITLE.len()));
        println!("\nBuilt by {BUILT_BY}.");
        for (title, lines) in [("not measured", &self.missing), ("note", &self.notes)] {
            for line in lines {
                println!("{title}: {line}");
            }
        }
    }

    /// Prints the table of the sweeps.
    pub(crate) fn print_sweeps(&self) {
        print_table(&sweep::table(&self.sweeps, false));
    }

    /// Replaces the table of sweeps on the page.
    pub(crate) fn write_sweeps(&self) -> Result<()> {
        write_table("sweep", &markdown(&sweep::table(&self.sweeps, true)))
    }

    /// Replaces the table `name` on the page. The new table contains the rows of these parts.
    pub(crate) fn write_page(&self, name: &str, parts: &[Part]) -> Result<()> {
        let rows = self.rows.iter().filter(|row| parts.contains(&row.part));
        write_table(name, &table(rows, parts.len() > 1))
    }
}

/// Prints a table as Markdown. All lines have the same number of cells.
fn print_table(lines: &[Vec<String>]) {
    println!();
    for line in lines {
        for (column, cell) in line.iter().enumerate() {
            let widths = lines.iter().map(|line| line[column].chars().count());
            print!("| {cell:0$} ", widths.max().unwrap_or(0));
        }
        println!("|");
    }
}

/// Replaces the table `name` on the page with `table`.
fn write_table(name: &str, table: &str) -> Result<()> {
    let page = fs::read_to_string(PAGE).with_context(|| format!("cannot read {PAGE}"))?;
    let page = with_table(&page, name, table)?;
    fs::write(PAGE, page).with_context(|| format!("cannot write {PAGE}"))?;
    println!("bench: replaced table {name} of {PAGE}");
    Ok(())
}

/// Returns a copy of `page` in which `table` replaces the text between the two comments for `name`.
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

/// Returns a table that is narrow enough for the page, because it omits the targets. `of_parts` is
/// set if the rows are from several parts. Only then does the table contain the names of the parts.
fn table<'a>(rows: impl Iterator<Item = &'a Row>, of_parts: bool) -> String {
    markdown(&lines(rows, usize::from(!of_parts)..TITLE.len() - 1))
}

/// Returns the column headings, and the cells of each row. Contains only the given columns.
fn lines<'a>(rows: impl Iterator<Item = &'a Row>, columns: Range<usize>) -> Vec<Vec<String>> {
    let lines = iter::once(TITLE.map(str::to_owned)).chain(rows.map(cells));
    lines.map(|line| line[columns.clone()].to_vec()).collect()
}

/// Returns a Markdown table without padding. The first of `lines` contains the column headings.
fn markdown(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let mut lines = lines.iter().map(|line| format!("|{}|\n", line.join("|")));
    let title = lines.next().unwrap_or_default();
    title + &"|---".repeat(columns) + "|\n" + &lines.collect::<String>()
}

const TITLE: [&str; 8] = ["part", "", "ours", "", "theirs", "", "ratio", "target"];

fn cells(row: &Row) -> [String; 8] {
    let figure = |side: &Side| {
        let figure = median(&side.figures);
        figure.map_or_else(String::new, |figure| row.measure.show(row.size, figure))
    };
    // All programs of the counted part sleep while they wait for events, so omit "event" from their
    // names.
    let name = |side: &Side| match side.name.strip_prefix("rdmsg") {
        Some(name) if name.contains(" event") || name.contains(" busy") => {
            let is_counted = row.part == Part::Counted;
            let name = name.trim();
            let short = name.strip_prefix("event ").filter(|_| is_counted);
            short.unwrap_or(name).to_owned()
        }
        Some(name) => format!("default{name}"),
        None => side.name.clone(),
    };
    let ratio = row.ratios().and_then(|ratios| median(&ratios));
    let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}"));
    let theirs = row.theirs.as_ref();
    [
        row.part.to_string(),
        kind(row.measure, row.size),
        name(&row.ours),
        figure(&row.ours),
        theirs.map_or_else(String::new, name),
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
        let mut met = row(&[8.0, 8.5, 8.9], &[10.0; 3], Target::AtMost(0.9));
        let expected = [
            "free",
            "half round trip, 64 B",
            "busy",
            "8.50 µs",
            "ib_send_lat -R",
            "10.00 µs",
            "0.850",
            "≤ 0.9 met: 0.80 … 0.89",
        ];
        assert_eq!(cells(&met), expected);
        met.part = Part::Counted;
        for (name, short) in [
            ("rdmsg", "default"),
            ("rdmsg tcp", "default tcp"),
            ("rdmsg event", "event"),
            ("rdmsg event tcp", "tcp"),
        ] {
            met.ours.name = name.to_owned();
            assert_eq!(cells(&met)[2], short);
        }
        let counted = row(&[9.1], &[10.0], Target::None);
        assert_eq!(cells(&counted)[6..], ["0.910", "-"]);
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
        wide.part = Part::Counted;
        wide.ours.name = "rdmsg event small shared event_fd ×1000".to_owned();
        wide.theirs.as_mut().unwrap().name = "rdmsg event small shared event_fd".to_owned();
        let text = table([&wide].into_iter(), false);
        wide.part = Part::OneProcessor;
        wide.ours.name = "rdmsg busy tcp".to_owned();
        wide.theirs.as_mut().unwrap().name = "rdmsg event tcp".to_owned();
        let of_parts = table([&wide].into_iter(), true);
        let last =
            "|one-processor|half round trip, 64 B|busy tcp|2100.50 µs|event tcp|24.50 µs|85.735|";
        assert_eq!(of_parts.lines().last(), Some(last));
        for line in text.lines().chain(of_parts.lines()) {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
