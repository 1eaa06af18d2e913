//! Prose is as narrow as code, a file is as long as one sitting, and links of pages lead somewhere.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// As wide as rustfmt makes code, which leaves comments, strings and pages as they are.
const COLUMNS: usize = 100;

/// The sources of the library and of the crates below it.
const CRATES: [&str; 6] = [
    "src",
    "os/src",
    "proto/src",
    "rsocket/src",
    "status/src",
    "verbs/src",
];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path
            .extension()
            .is_some_and(|ending| ending == "rs" || ending == "md")
        {
            into.push(path);
        }
    }
}

/// Where a line is too long. Tables of tests that rustfmt is told to skip are no prose.
fn too_long(source: &str) -> Vec<usize> {
    let mut in_table = false;
    (1..)
        .zip(source.lines())
        .filter(|(_, line)| {
            in_table |= line.trim_start().starts_with("#[rustfmt::skip]");
            if in_table && *line == "}" {
                in_table = false;
            }
            !in_table && line.chars().count() > COLUMNS
        })
        .map(|(number, _)| number)
        .collect()
}

#[test]
fn no_line_is_wider_than_code() {
    assert_eq!(
        too_long(&format!("short\n//{}\n", "ä".repeat(99))),
        [2],
        "the reader counts characters"
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wide = Vec::new();
    let mut check = |folder: &str, only_comments: bool| {
        let mut files = Vec::new();
        sources(&root.join(folder), &mut files);
        for file in files {
            let source = fs::read_to_string(&file).unwrap();
            let lines: Vec<_> = source.lines().collect();
            for number in too_long(&source) {
                if !only_comments || lines[number - 1].trim_start().starts_with("//") {
                    wide.push(format!("{}:{number}", file.display()));
                }
            }
        }
    };
    for folder in CRATES {
        check(folder, false);
    }
    check("tests", false);
    check("docs", false);
    // Their commands and what they tell people are strings of one line.
    check("cm-examples", true);
    check("integration", true);
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

/// Files that can be read in one sitting: so many lines of code, comments and tests not counted.
const LONGEST: usize = 500;

#[test]
fn no_file_is_longer_than_a_sitting() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in [
        "src",
        "os/src",
        "proto/src",
        "rsocket/src",
        "status/src",
        "verbs/src",
    ] {
        sources(&root.join(folder), &mut files);
    }
    let mut long = Vec::new();
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        let code = source
            .lines()
            .take_while(|line| *line != "#[cfg(test)]")
            .map(str::trim_start)
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
            .count();
        if code > LONGEST {
            long.push(format!("{}: {code} lines of code", file.display()));
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Returns the targets of a page's links, but not those of code.
fn links(page: &str) -> Vec<&str> {
    let mut in_code = false;
    let lines = page.lines().filter(|line| {
        in_code ^= line.trim_start().starts_with("```");
        !in_code
    });
    let targets = lines.flat_map(|line| line.split("](").skip(1));
    targets
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect()
}

/// Pages of the guide link to items of the crate, which rustdoc checks.
#[test]
fn links_of_pages_lead_to_files_and_headings() {
    assert_eq!(links("[a](b.md) [c](#d)\n```\n[e](f)\n```"), ["b.md", "#d"]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect();
    for folder in ["rdmsg-cli", "cm-examples", "integration"] {
        sources(&root.join(folder), &mut pages);
    }
    pages.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    assert!(pages.len() >= 7, "{pages:?}");
    let mut dead = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.with_file_name(file)
            };
            let has_heading = || {
                let text = fs::read_to_string(&target).unwrap();
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                headings.any(|line| anchor(line) == heading)
            };
            if !target.exists() || !(heading.is_empty() || has_heading()) {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// Returns the name by which links refer to a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}
