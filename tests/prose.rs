//! Checks the comments and pages: lines have at most 100 columns, sentences use plain words, pages
//! are short, and links lead to existing files and headings. Also checks that source files are
//! short, and that few files implement the main types of a connection.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The maximum width of a line, in columns. rustfmt does not enforce this width for comments,
/// strings or Markdown pages.
const COLUMNS: usize = 100;

/// The maximum total size of the pages in the root directory, in bytes.
const MAX_ROOT_BYTES: usize = 60 << 10;
/// The maximum size of ARCHITECTURE.md, in bytes.
const MAX_ARCHITECTURE_BYTES: usize = 12 << 10;

/// The maximum number of lines of code in a file, without blank lines, comments and tests.
const MAX_LINES_OF_CODE: usize = 500;

/// The types whose methods would otherwise be scattered over the files of `src/link`, each with the
/// maximum number of files that contain methods of the type.
const FILES_WITH_METHODS: [(&str, usize); 3] = [("Link", 3), ("Core", 3), ("Recovery", 3)];

fn root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap()
}

fn ends_in(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found == ending)
}

/// Collects the source files and pages in a directory and its subdirectories. Skips build results
/// and hidden directories.
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

/// Returns the numbers of the lines that are too long. Skips tables that are marked with
/// `rustfmt::skip`.
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
fn lines_have_at_most_100_columns() {
    assert_eq!(
        too_long(&format!("short\n//{}\n", "ä".repeat(99))),
        [2],
        "the width must be counted in characters, not in bytes"
    );
    let mut wide = Vec::new();
    for file in all_sources() {
        // In these directories, check only comments, because the code contains long strings with
        // commands and messages.
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
fn source_files_have_at_most_500_lines_of_code() {
    let mut files = Vec::new();
    for member in [
        "",
        "os",
        "poll",
        "proto",
        "rdmsg-cli",
        "rsocket",
        "status",
        "valkey",
        "verbs",
    ] {
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
        if code > MAX_LINES_OF_CODE {
            long.push(format!("{}: {code} lines of code", file.display()));
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn few_files_implement_the_types_of_a_connection() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    for (name, most) in FILES_WITH_METHODS {
        let starts = [format!("impl {name} {{"), format!("impl {name}<'_> {{")];
        let with_methods: Vec<_> = files
            .iter()
            .filter(|file| {
                let source = fs::read_to_string(file).unwrap();
                source
                    .lines()
                    .any(|line| starts.iter().any(|it| it == line))
            })
            .collect();
        assert!(
            (1..=most).contains(&with_methods.len()),
            "at most {most} files may contain methods of {name}: {with_methods:?}"
        );
    }
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
            !page.ends_with("ARCHITECTURE.md") || len <= MAX_ARCHITECTURE_BYTES,
            "{len}"
        );
    }
    assert!(
        (MAX_ROOT_BYTES / 2..=MAX_ROOT_BYTES).contains(&sum),
        "{sum} bytes"
    );
}

/// Returns the targets of the links on a page, except links in code blocks.
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

/// Returns the anchor with which links refer to a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// If this test fails, run `integration/bench counted --quick --write`. Then copy the rows from
/// `docs/performance.md` to `README.md`.
#[test]
fn readme_figures_match_the_performance_tables() {
    let [readme, tables] = ["README.md", "docs/performance.md"]
        .map(|page| fs::read_to_string(root().join(page)).unwrap());
    let is_row = |line: &&str| line.starts_with('|') && line.matches('|').count() == 7;
    let rows = readme.lines().filter(is_row).skip(2);
    let stale: Vec<_> = rows
        .filter(|row| !tables.lines().any(|line| line == *row))
        .collect();
    assert!(stale.is_empty(), "{stale:#?}");
    assert!(
        readme.lines().filter(is_row).count() >= 12,
        "the README must contain at least ten rows and the two lines of the heading"
    );
}

/// The links of the guide lead to items of the crate, and rustdoc checks these links. So this test
/// skips the pages of the guide.
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

/// For a name such as `link/cork.rs`, the path of an existing file must end with the name. For a
/// name such as `link/`, the path of an existing file must contain the name.
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
        assert!(found, "no existing path matches {name}");
    }
}

/// Words that often make a sentence hard to read, with better alternatives. A few uses are
/// justified.
#[rustfmt::skip]
const STYLE: [(&str, &str); 8] = [
    ("whoever, nobody, somebody, everybody, those who", "name the thread, type or peer"),
    ("what, that which", "name the thing"),
    ("so many, so much, as many, as often", "state the number or its bound"),
    ("is told, are told, be told, hears of, says so", "returns, reports, notifies"),
    ("where there, where it, where nothing, where a, where they", "if or when"),
    ("is to be, are to be, is to do, is to go", "present tense"),
    ("let go, lets go, befalls, comes to, comes of", "releases, frees, ends, cancels"),
    ("in vain, for ever, anew, beside, any more", "current words"),
];

/// For each directory, the maximum number of sentences per 1000 that contain words of [`STYLE`]. A
/// file belongs to the first directory in this list that contains the file. Lower a bound when its
/// directory improves; never raise a bound.
#[rustfmt::skip]
const BOUNDS: [(&str, usize); 8] = [
    ("src", 2), ("proto", 3), ("verbs", 2), ("integration", 2), ("docs", 1), ("tests", 2),
    ("poll", 1), ("", 2),
];

/// Returns the sentences of a page, or of the comments in a source file, with their line numbers.
fn sentences(text: &str, is_page: bool) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut is_new) = (false, true);
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        let comment = line.strip_prefix("//");
        let comment = comment.map(|line| line.trim_start_matches(['/', '!']).trim_start());
        let line = if is_page { line } else { comment.unwrap_or("") };
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        is_code &= is_page || comment.is_some();
        if is_code || is_fence || line.is_empty() || line.starts_with(['#', '=']) {
            is_new = true;
            continue;
        }
        for word in line.split_whitespace() {
            let begins = !word.starts_with(char::is_lowercase);
            match found.last_mut() {
                Some((_, text)) if !(is_new || begins && text.ends_with(['.', ';', ':', '?'])) => {
                    *text += " ";
                    *text += word;
                }
                _ => found.push((number, word.to_owned())),
            }
            is_new = false;
        }
    }
    found
}

/// Returns the first entry of [`STYLE`] that the sentence contains, and its alternative.
fn hard_words(sentence: &str) -> Option<(&'static str, &'static str)> {
    let sentence = sentence.to_lowercase();
    let words = sentence.split(|c: char| !c.is_alphanumeric() && !"'_-`".contains(c));
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let text = format!(" {} ", words.join(" "));
    let all = STYLE.iter().flat_map(|(all, better)| {
        let all = all.split(", ");
        all.map(|words| (words, *better))
    });
    let mut found = all.filter(|(words, _)| text.contains(&format!(" {words} ")));
    found.next()
}

#[test]
fn share_of_hard_sentences_is_bounded() {
    let source = "/// Waits for a\n/// reply. Whoever asks, waits; `Ask`.\n//\n// How?\nfn f() {}";
    let expected = [
        "1: Waits for a reply.",
        "2: Whoever asks, waits;",
        "2: `Ask`.",
        "4: How?",
    ];
    let found = sentences(source, false).into_iter();
    let found: Vec<_> = found
        .map(|(line, text)| format!("{line}: {text}"))
        .collect();
    assert_eq!(found, expected);
    let words = hard_words("It waits (for ever).");
    assert_eq!(words, Some(("for ever", "current words")));
    assert_eq!(hard_words("It is somewhat anewer."), None);

    let mut by_folder = [(); BOUNDS.len()].map(|()| (0, Vec::new()));
    for file in all_sources() {
        let path = file.strip_prefix(root()).unwrap();
        let folder = BOUNDS
            .iter()
            .position(|(folder, _)| path.starts_with(folder));
        let (count, hard) = &mut by_folder[folder.unwrap()];
        for (line, text) in sentences(&fs::read_to_string(&file).unwrap(), ends_in(path, "md")) {
            *count += 1;
            let place = format!("{}:{line}", path.display());
            let found = hard_words(&text);
            hard.extend(
                found.map(|(words, better)| format!("{place}: {words:?} ({better}): {text}")),
            );
        }
    }
    for ((folder, bound), (count, hard)) in BOUNDS.iter().zip(by_folder) {
        let hard_share = hard.len() * 1000;
        assert!(
            hard_share <= bound * count,
            "{folder:?} has {} hard sentences among {count}, more than {bound} in 1000:\n{}",
            hard.len(),
            hard.join("\n")
        );
    }
}
