//! The pages on security name the test behind each of their promises: each of these exists.

use std::{fs, path::Path};

fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// A test's name is a sentence of at least four words.
fn tests_of(page: &str) -> Vec<&str> {
    page.split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.matches('_').count() >= 3)
        .filter(|name| {
            name.bytes()
                .all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit())
        })
        .collect()
}

#[test]
fn each_row_of_a_number_names_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("SECURITY-NUMBERS.md")).unwrap();
    let rows: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| number |"))
        .collect();
    assert!(rows.len() > 60, "{}", rows.len());
    for row in rows {
        assert_eq!(row.matches(" | ").count(), 4, "five cells: {row}");
        assert!(!tests_of(row).is_empty(), "no test in: {row}");
    }
}

#[test]
fn each_test_that_a_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    for folder in [
        "src",
        "os",
        "proto",
        "rsocket",
        "verbs",
        "tests",
        "integration",
        "rdmsg-cli",
    ] {
        sources(&root.join(folder), &mut code);
    }
    for (page, least) in [("SECURITY.md", 30), ("SECURITY-NUMBERS.md", 60)] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let named = tests_of(&text);
        assert!(named.len() > least, "{page}: {named:?}");
        for name in named {
            assert!(
                code.contains(&format!("fn {name}(")),
                "{page}: no test is named {name}"
            );
        }
    }
}
