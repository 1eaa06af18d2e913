//! SECURITY.md names the test behind each of its promises: each of these exists.

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

#[test]
fn each_test_that_security_md_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let mut code = String::new();
    for folder in ["src", "tests", "integration", "rdmsg-cli"] {
        sources(&root.join(folder), &mut code);
    }
    // A test's name is a sentence of at least four words.
    let named: Vec<&str> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.matches('_').count() >= 3)
        .filter(|name| {
            name.bytes()
                .all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit())
        })
        .collect();
    assert!(named.len() > 30, "{named:?}");
    for name in named {
        assert!(
            code.contains(&format!("fn {name}(")),
            "no test is named {name}"
        );
    }
}
