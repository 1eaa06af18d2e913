//! Prose is as narrow as code, and a file as long as one sitting.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// As wide as rustfmt makes code, which leaves comments, strings and pages as they are.
const COLUMNS: usize = 100;

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
    check("src", false);
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
    sources(&root.join("src"), &mut files);
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
