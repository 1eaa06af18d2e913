//! Each public method of the handles is called somewhere in this suite, or in those of streams, of
//! tasks and of the methods for TCP.

use std::{fs, path::Path};

/// Where the handles' public methods are, and what they are called on.
const HANDLES: &[&str] = &[
    "connector.rs",
    "endpoint",
    "endpoint.rs",
    "engine/command.rs",
    "engine/engine.rs",
    "group.rs",
    "link/completion.rs",
    "link/message.rs",
    "listener.rs",
    "listener_builder.rs",
    "send_buffer.rs",
    "stream",
    "stream.rs",
    "tokio",
    "transport/memory/region.rs",
];

fn text(path: &Path, into: &mut String) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            text(&entry.unwrap().path(), into);
        }
    } else {
        into.push_str(&fs::read_to_string(path).unwrap());
    }
}

#[test]
fn every_public_method_has_its_place_here() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut suite = String::new();
    for tests in ["conformance", "behaviour", "tasks", "tcp_api"].map(|of| format!("tests/{of}")) {
        text(&root.join(tests), &mut suite);
    }
    let mut missing = Vec::new();
    let mut seen = 0;
    for handle in HANDLES {
        let mut source = String::new();
        text(&root.join("src").join(handle), &mut source);
        for line in source.lines() {
            let line = line.trim_start();
            let public = ["pub fn ", "pub async fn "];
            let Some(rest) = public.iter().find_map(|public| line.strip_prefix(public)) else {
                continue;
            };
            let end = rest.find(['(', '<']).unwrap();
            let name = &rest[..end];
            seen += 1;
            let called = [format!(".{name}("), format!("::{name}(")];
            if !called.iter().any(|call| suite.contains(call)) {
                missing.push(format!("{handle}: {name}"));
            }
        }
    }
    assert!(seen > 50, "the methods were found: {seen}");
    assert!(missing.is_empty(), "without a test here: {missing:?}");
}
