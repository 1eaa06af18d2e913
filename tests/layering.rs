//! An arrow between layers goes down only. This reads the source for what each layer names of the crate.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Each layer with what it may name, besides itself.
const LAYERS: &[(&str, &[&str])] = &[
    ("status", &[]),
    ("sys", &["status"]),
    ("sync", &["status"]),
    ("verbs", &["sys", "status"]),
    ("cm", &["verbs", "sys", "status"]),
    ("proto", &["status"]),
    ("rsocket", &["cm", "verbs", "status"]),
    (
        "transport",
        &[
            "proto",
            "cm",
            "verbs",
            "sys",
            "status",
            "sync",
            "config",
            "error",
            "remote_access",
        ],
    ),
    (
        "link",
        &[
            "transport",
            "proto",
            "status",
            "sync",
            "config",
            "error",
            "interest",
            "remote_access",
        ],
    ),
    // The engine gives out what it makes of the handles' types, so these two lie side by side at the top.
    (
        "engine",
        &[
            "link",
            "transport",
            "proto",
            "cm",
            "verbs",
            "sys",
            "status",
            "sync",
            "config",
            "endpoint",
            "error",
            "listener",
        ],
    ),
];

/// What the handles may name: they stand on the engine and never reach past it to the device.
const HANDLES: &[&str] = &["proto", "status", "sync", "transport", "link", "engine"];

/// The one crate that only `sys` may name.
const BINDINGS: &str = "rdma_sys";

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(path);
        }
    }
}

/// The modules of this crate that a source names: `use crate::{a, b::c}`, `use crate::a::b` and `crate::a::f()`.
fn named(source: &str) -> BTreeSet<String> {
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            // The names at the first level of the braces.
            let (mut depth, mut name, mut fresh) = (1, String::new(), true);
            for c in list.chars() {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 1 => fresh = true,
                    c if fresh && (c.is_alphanumeric() || c == '_') => name.push(c),
                    c if !c.is_whitespace() => fresh = false,
                    _ => {}
                }
                if (!fresh || depth == 0 || c == ',') && !name.is_empty() {
                    names.insert(std::mem::take(&mut name));
                }
                if depth == 0 {
                    break;
                }
            }
        } else {
            names.insert(
                rest.chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect(),
            );
        }
    }
    names
}

#[test]
fn the_reader_finds_names() {
    let names = named(
        "use crate::{\n a, b::{c, d},\n e::f,\n};\nuse crate::g::h;\nlet x = crate::i::j();\n// crate::k\n",
    );
    assert_eq!(names, ["a", "b", "e", "g", "i"].map(String::from).into());
}

#[test]
fn arrows_go_down_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for file in &files {
        let source = fs::read_to_string(file).unwrap();
        let inner = file.strip_prefix(&root).unwrap();
        let top = inner
            .components()
            .next()
            .unwrap()
            .as_os_str()
            .to_str()
            .unwrap();
        let layer = LAYERS.iter().find(|(name, _)| *name == top);
        seen.extend(layer.map(|(name, _)| *name));
        for name in named(&source) {
            let is_layer = LAYERS.iter().any(|(layer, _)| *layer == name);
            let allowed = match layer {
                Some((own, below)) => {
                    name == *own
                        || below.contains(&name.as_str())
                        || name.starts_with(char::is_uppercase) && *own == "engine"
                }
                None if inner == Path::new("lib.rs") => true,
                None => !is_layer || HANDLES.contains(&name.as_str()),
            };
            if !allowed {
                wrong.push(format!("{}: names crate::{name}", inner.display()));
            }
        }
        if top != "sys" && source.contains(BINDINGS) {
            wrong.push(format!("{}: names {BINDINGS}", inner.display()));
        }
    }
    assert_eq!(seen.len(), LAYERS.len(), "every layer has files: {seen:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
