//! Checks that each claim on the security pages names a test, and that the named tests exist.

use std::{fs, path::Path};

const PAGES: [&str; 2] = ["docs/security-tests.md", "docs/security-numbers.md"];

fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_hidden = path.file_name().unwrap().as_encoded_bytes()[0] == b'.';
        if path.is_dir() && !is_hidden && !path.ends_with("target") {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns the names of tests on a page: the words in backticks that consist of at least four
/// parts, separated by underscores.
fn tests_of(text: &str) -> Vec<&str> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.matches('_').count() >= 3)
        .filter(|name| {
            name.bytes()
                .all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit())
        })
        .collect()
}

fn root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap()
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

#[test]
fn each_entry_names_a_test() {
    for (name, least, label) in [(PAGES[0], 35, "Cost: "), (PAGES[1], 80, "Bound: ")] {
        let text = page(name);
        let entries: Vec<_> = text.split("\n* **").skip(1).collect();
        assert!(entries.len() > least, "{name}: {} entries", entries.len());
        for entry in entries {
            let (claim, tests) = entry.split_once("\n  - Test").expect(entry);
            assert!(claim.contains(&format!("\n  - {label}")), "{name}: {entry}");
            assert!(
                !tests_of(tests).is_empty(),
                "{name}: this entry names no test: {entry}"
            );
        }
    }
}

#[test]
fn each_test_that_a_page_names_exists() {
    let mut code = String::new();
    sources(root(), &mut code);
    for name in PAGES {
        for test in tests_of(&page(name)) {
            assert!(
                code.contains(&format!("fn {test}(")),
                "{name} names the test {test}, which does not exist"
            );
        }
    }
}
