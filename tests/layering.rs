//! Checks that each layer of `src` uses only itself and lower layers. The dependencies between
//! crates are not checked here, because Cargo checks them. Also checks that the manifest of the
//! tests lists all test programs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The layers from bottom to top. Each entry lists the directories and files of one layer at the
/// top level of `src`.
const LAYERS: [&str; 9] = [
    "machine",
    // The types that all higher layers use.
    "addresses config error interest remote_access transport_choice",
    "local",
    // The counters that all higher layers increment.
    "tally",
    "transport",
    "link",
    "engine",
    "observe",
    // The handles.
    "connector endpoint group listener outgoing persistent send_buffer stream testing tokio",
];

/// The other workspace crates that every layer may use, under their names in the crate root.
const CRATES: &[&str] = &["os", "poll", "proto", "status"];

/// The RDMA crates, which only the layer `transport` may use.
const CRATES_OF_RDMA: &[&str] = &["cm", "verbs"];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Separate test files may use any layer.
        if path.ends_with("tests") || path.ends_with("testing.rs") {
            continue;
        }
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(path);
        }
    }
}

/// Returns the code of a source file, without comments and unit tests.
fn code(source: &str) -> String {
    let tests = "#[cfg(test)]\nmod tests {";
    let code = source.split(tests).next().unwrap_or_default();
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    let lines = code.lines().filter(|line| !is_comment(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the names that follow `crate::`. If a list in braces follows `crate::`, returns the
/// names at the top level of the list.
fn names_after_crate(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, start) in code.match_indices("crate::") {
        let (mut depth, mut is_name) = (0, true);
        let mut name = String::new();
        for c in code[at + start.len()..].chars() {
            match c {
                c if c.is_alphanumeric() || c == '_' => {
                    name.extend(is_name.then_some(c));
                    continue;
                }
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            // A name at the top level of the list ends here. The next name begins after a comma.
            if !name.is_empty() {
                names.insert(std::mem::take(&mut name));
            }
            is_name = depth == 1 && (c == ',' || c == '{' || (is_name && c.is_whitespace()));
            if depth == 0 {
                break;
            }
        }
    }
    names
}

/// Returns the index in [`LAYERS`] of the layer that contains a top-level name.
fn layer(name: &str) -> Option<usize> {
    let has = |names: &&str| names.split(' ').any(|it| it == name);
    LAYERS.iter().position(has)
}

#[test]
fn names_after_crate_finds_top_level_names() {
    let code = "use crate::{\n a, b::{c, d},\n e::f as g,\n};\ncrate::h::i(crate::j);";
    let names: Vec<String> = names_after_crate(code).into_iter().collect();
    assert_eq!(names, ["a", "b", "e", "h", "j"]);
}

#[test]
fn layer_uses_only_itself_and_lower_layers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let (mut files, mut wrong, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    sources(&root, &mut files);
    for file in files {
        let inner = file.strip_prefix(&root).unwrap();
        let first = inner.iter().next().unwrap().to_str().unwrap();
        let top = first.strip_suffix(".rs").unwrap_or(first);
        if top == "lib" {
            continue;
        }
        let own = layer(top).unwrap_or_else(|| panic!("{} has no layer", inner.display()));
        seen.insert(own);
        for name in names_after_crate(&code(&fs::read_to_string(&file).unwrap())) {
            let is_allowed = match layer(&name) {
                Some(other) => other <= own,
                None if CRATES_OF_RDMA.contains(&&*name) => LAYERS[own] == "transport",
                None => CRATES.contains(&&*name),
            };
            if !is_allowed {
                wrong.push(format!("{} must not use {name}", inner.display()));
            }
        }
    }
    let text = "each layer must have files, but only these have";
    assert_eq!(seen.len(), LAYERS.len(), "{text}: {seen:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn manifest_lists_every_test_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let mut programs = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let file = match name.strip_suffix(".rs") {
            Some(_) => name,
            None => format!("{name}/main.rs"),
        };
        if folder.join(&file).exists() {
            programs += 1;
            let is_listed = manifest.contains(&format!("\"{file}\""));
            assert!(is_listed, "{file} is not in tests/Cargo.toml");
        }
    }
    assert_eq!(manifest.matches("{ name = ").count(), programs);
}
