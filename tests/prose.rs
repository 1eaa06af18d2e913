//! Lines of prose have the width of code, pages are short, links lead somewhere, and each file fits
//! one sitting.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The width of code in columns. rustfmt does not wrap comments, strings and pages.
const COLUMNS: usize = 100;

/// The total size of the pages of the root, in bytes.
const ROOT_PAGES: usize = 60 << 10;
const ARCHITECTURE: usize = 12 << 10;

/// The limit of lines of code in a file, without comments and tests.
const LONGEST: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn ends_in(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found == ending)
}

/// Lists the sources and pages in a folder, without build results and hidden files.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_hidden = path.file_name().unwrap().as_encoded_bytes()[0] == b'.';
        if path.is_dir() && !is_hidden && !path.ends_with("target") {
            sources(&path, into);
        } else if ends_in(&path, "rs") || ends_in(&path, "md") {
            into.push(path);
        }
    }
}

fn all_sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    sources(root(), &mut files);
    files
}

fn pages() -> Vec<PathBuf> {
    let mut pages = all_sources();
    pages.retain(|path| ends_in(path, "md"));
    assert!(pages.len() > 18, "{pages:?}");
    pages
}

/// Returns the numbers of lines that are too long. Tables that rustfmt skips do not count.
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
    let mut wide = Vec::new();
    for file in all_sources() {
        // Commands and messages for people are strings in one line.
        let only_comments = ends_in(&file, "rs")
            && ["cm-examples", "integration", "rdmsg-cli"]
                .iter()
                .any(|folder| file.starts_with(root().join(folder)));
        let source = fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = source.lines().collect();
        for number in too_long(&source) {
            if !only_comments || lines[number - 1].trim_start().starts_with("//") {
                wide.push(format!("{}:{number}", file.display()));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

#[test]
fn no_file_is_longer_than_a_sitting() {
    let mut files = Vec::new();
    for member in ["", "os", "proto", "rsocket", "status", "verbs"] {
        sources(&root().join(member).join("src"), &mut files);
    }
    files.retain(|file| ends_in(file, "rs"));
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

#[test]
fn pages_of_the_root_are_short() {
    let mut sum = 0;
    for page in pages() {
        let len = fs::metadata(&page).unwrap().len() as usize;
        if page.parent() == Some(root()) {
            sum += len;
        }
        assert!(
            !page.ends_with("ARCHITECTURE.md") || len <= ARCHITECTURE,
            "{len}"
        );
    }
    assert!((ROOT_PAGES / 2..=ROOT_PAGES).contains(&sum), "{sum} bytes");
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

/// Returns the name by which links refer to a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Links of the guide lead to items of the crate, and rustdoc checks them.
#[test]
fn links_of_pages_lead_to_files_and_headings() {
    assert_eq!(links("[a](b.md) [c](#d)\n```\n[e](f)\n```"), ["b.md", "#d"]);
    let guide = root().join("docs/guide");
    let mut dead = Vec::new();
    for page in pages() {
        if page.starts_with(&guide) {
            continue;
        }
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

/// A name such as `link/cork.rs` is the end of a path, and one such as `link/` a part of it.
#[test]
fn names_in_the_architecture_lead_to_files() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let files: Vec<_> = all_sources()
        .iter()
        .map(|file| format!("/{}", file.strip_prefix(root()).unwrap().display()))
        .collect();
    let names: Vec<_> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.ends_with(".rs") || name.ends_with(".md") || name.ends_with('/'))
        .collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        let part = format!("/{name}");
        let found = if name.ends_with('/') {
            files.iter().any(|file| file.contains(&part))
        } else {
            files.iter().any(|file| file.ends_with(&part))
        };
        assert!(found, "no file: {name}");
    }
}
