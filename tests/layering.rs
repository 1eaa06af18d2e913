//! An arrow between layers goes down only, and no files go round in circles. This reads the source
//! for what each file names of the crate.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The layers from the bottom up, each with those that it may name. A layer is a folder, or files
/// at the top.
const LAYERS: &[(&str, &[&str], &[&str])] = &[
    ("foreign", &["foreign"], &["sys"]),
    ("status", &["status"], &[]),
    ("sys", &["sys"], &["status"]),
    ("memory", &["memory"], &["sys", "status"]),
    ("verbs", &["verbs"], &["memory", "sys", "status"]),
    ("cm", &["cm"], &["verbs", "sys", "status"]),
    ("proto", &["proto"], &["status"]),
    ("rsocket", &["rsocket"], &["cm", "verbs", "sys", "status"]),
    ("machine", &["machine"], &["sys", "status"]),
    // What all layers above speak in.
    (
        "vocabulary",
        &[
            "addresses",
            "config",
            "error",
            "interest",
            "remote_access",
            "transport_kind",
        ],
        &["machine", "proto", "status"],
    ),
    (
        "sync",
        &["sync", "log_limit"],
        &["foreign", "sys", "status"],
    ),
    (
        "transport",
        &["transport"],
        &[
            "vocabulary",
            "machine",
            "sync",
            "proto",
            "cm",
            "verbs",
            "memory",
            "sys",
            "status",
        ],
    ),
    (
        "poll",
        &["poll"],
        &["transport", "vocabulary", "sync", "foreign", "status"],
    ),
    (
        "link",
        &["link"],
        &[
            "poll",
            "transport",
            "vocabulary",
            "sync",
            "proto",
            "sys",
            "status",
            "foreign",
        ],
    ),
    (
        "engine",
        &["engine"],
        // Of `sys` the exit handler and the process of an object.
        &[
            "link",
            "poll",
            "transport",
            "vocabulary",
            "sync",
            "proto",
            "sys",
            "status",
            "foreign",
        ],
    ),
    (
        "observe",
        &["observe"],
        &["link", "vocabulary", "sync", "proto", "sys"],
    ),
    (
        "handles",
        &[
            "connector",
            "endpoint",
            "group",
            "listener",
            "listener_builder",
            "private_data",
            "send_buffer",
            "stream",
            "tokio",
        ],
        &[
            "observe",
            "engine",
            "link",
            "poll",
            "transport",
            "vocabulary",
            "machine",
            "sync",
            "proto",
            "sys",
            "foreign",
        ],
    ),
];

/// The crates that only `sys` may name.
const BINDINGS: [&str; 2] = ["rdma_sys", "libloading"];

/// What is above the transports names none of these.
const BELOW_TRANSPORTS: &[&str] = &["CmId", "QueuePair", "MemoryRegion", "CompletionQueue"];

/// The folders of `verbs`, each of which may name those before it.
const FOLDERS_OF_VERBS: &[&str] = &[
    "device",
    "memory",
    "completion",
    "work_request",
    "queue_pair",
];

/// A module of the crate: its path, and the file that has it.
type Modules = BTreeMap<Vec<String>, PathBuf>;

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

/// The path of the module that a file has: `a/b.rs` and `a/b/mod.rs` have `a::b`.
fn module(inner: &Path) -> Vec<String> {
    let mut path: Vec<String> = inner
        .with_extension("")
        .iter()
        .map(|part| part.to_str().unwrap().into())
        .collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib")) {
        path.pop();
    }
    path
}

/// A file's code, without its tests and comments.
fn code(source: &str) -> String {
    let source = source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Something of this crate that a file names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    /// From the crate's root, with the name at the end.
    path: Vec<String>,
    /// What it is called here.
    alias: String,
}

fn parent(path: &[String]) -> Vec<String> {
    path[..path.len().saturating_sub(1)].to_vec()
}

/// What a file names: what stands behind `crate::`, `self::`, `super::`, or in a `use` behind a
/// module of its own folder, with braces taken apart.
fn named(code: &str, own: &[String], modules: &Modules) -> BTreeSet<Named> {
    let mut names = BTreeSet::new();
    for (start, base) in [
        ("crate::", Vec::new()),
        ("self::", own.to_vec()),
        ("super::", parent(own)),
    ] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            // `super::super::` goes up twice.
            let (mut rest, mut base) = (&code[at + start.len()..], base.clone());
            while let Some(further) = rest.strip_prefix("super::") {
                base = parent(&base);
                rest = further;
            }
            paths(rest, &base, &mut names);
        }
    }
    for (at, _) in code.match_indices("use ") {
        let rest = &code[at + "use ".len()..];
        let first: String = rest
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let child: Vec<String> = own.iter().cloned().chain([first]).collect();
        if modules.contains_key(&child) {
            paths(rest, own, &mut names);
        }
    }
    names
}

/// Reads one path, or a list in braces, behind `base`. Returns what follows it.
fn paths<'a>(mut rest: &'a str, base: &[String], into: &mut BTreeSet<Named>) -> &'a str {
    rest = rest.trim_start();
    if let Some(mut list) = rest.strip_prefix('{') {
        loop {
            list = list.trim_start();
            match list.chars().next() {
                None => return list,
                Some('}') => return &list[1..],
                Some(',') => list = &list[1..],
                Some(_) => {
                    let next = paths(list, base, into);
                    list = if next.len() < list.len() {
                        next
                    } else {
                        &list[1..]
                    };
                }
            }
        }
    }
    let (name, after) = word(rest);
    if name.is_empty() {
        return rest;
    }
    let mut path = base.to_vec();
    match name {
        "super" => drop(path.pop()),
        "self" => {}
        _ => path.push(name.into()),
    }
    if let Some(deeper) = after.strip_prefix("::") {
        return paths(deeper, &path, into);
    }
    let (alias, after) = match after.trim_start().strip_prefix("as ") {
        Some(alias) => word(alias.trim_start()),
        None => (name, after),
    };
    let alias = alias.into();
    into.insert(Named { path, alias });
    after
}

fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    text.split_at(end.unwrap_or(text.len()))
}

struct Crate {
    root: PathBuf,
    modules: Modules,
    /// What each file's code is.
    code: BTreeMap<PathBuf, String>,
}

impl Crate {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        sources(&root, &mut files);
        let mut modules = Modules::new();
        let mut all = BTreeMap::new();
        for file in files {
            let inner = file.strip_prefix(&root).unwrap().to_path_buf();
            // Tests in folders of their own name what they like.
            if inner.iter().any(|part| part == "tests") || inner.ends_with("testing.rs") {
                continue;
            }
            modules.insert(module(&inner), inner.clone());
            all.insert(inner, code(&fs::read_to_string(&file).unwrap()));
        }
        Self {
            root,
            modules,
            code: all,
        }
    }

    /// The file that defines what a path names: re-exports are followed to where they lead.
    fn file_of(&self, path: &[String]) -> Option<&PathBuf> {
        let mut path = path.to_vec();
        for _ in 0..8 {
            if let Some(file) = self.modules.get(&path) {
                return Some(file);
            }
            // The longest part that is a module, and the name behind it.
            let depth = (0..path.len())
                .rev()
                .find(|depth| self.modules.contains_key(&path[..*depth]))?;
            let (own, name) = (&path[..depth], &path[depth]);
            let file = &self.modules[own];
            match self.re_export(file, own, name) {
                Some(further) => path = further,
                None => return Some(file),
            }
        }
        panic!("{path:?} leads nowhere");
    }

    /// Where a module takes a name from that it re-exports.
    fn re_export(&self, file: &Path, own: &[String], name: &str) -> Option<Vec<String>> {
        let code = &self.code[file];
        let uses = code.match_indices("use ").filter(|(at, _)| {
            let line = code[..*at].rsplit('\n').next().unwrap_or_default();
            line.trim_start().starts_with("pub")
        });
        for (at, _) in uses {
            let statement = code[at..].split(';').next().unwrap_or_default();
            let found = named(statement, own, &self.modules)
                .into_iter()
                .find(|named| named.alias == name);
            if let Some(found) = found {
                return Some(found.path);
            }
        }
        None
    }

    /// Which files a file names, itself excepted.
    fn arrows(&self, own: &[String], file: &PathBuf) -> BTreeSet<&PathBuf> {
        let code = &self.code[file];
        named(code, own, &self.modules)
            .iter()
            .filter_map(|named| self.file_of(&named.path))
            .filter(|to| *to != file)
            .collect()
    }
}

/// Which layer a file belongs to.
fn layer(file: &Path) -> &'static str {
    let first = file.iter().next().unwrap().to_str().unwrap();
    let top = first.strip_suffix(".rs").unwrap_or(first);
    LAYERS
        .iter()
        .find(|(_, tops, _)| tops.contains(&top))
        .map(|(name, _, _)| *name)
        .unwrap_or_else(|| panic!("{} belongs to no layer", file.display()))
}

#[test]
fn the_reader_finds_names() {
    let own: Vec<String> = ["p", "q"].map(String::from).into();
    let code = "use crate::{\n a, b::{c, d},\n e::f as g,\n};\nuse super::{h::i, super::j};\n\
                let x = self::k::l();\npub use m::n;";
    let modules = Modules::from([(
        ["p", "q", "m"].map(String::from).into(),
        PathBuf::from("p/q/m.rs"),
    )]);
    let names: BTreeSet<String> = named(code, &own, &modules)
        .iter()
        .map(|named| format!("{} {}", named.path.join("::"), named.alias))
        .collect();
    let expected = [
        "a a",
        "b::c c",
        "b::d d",
        "e::f g",
        "p::h::i i",
        "j j",
        "p::q::k::l l",
        "p::q::m::n n",
    ];
    for name in expected {
        assert!(names.contains(name), "{name} in {names:?}");
    }
}

#[test]
fn arrows_go_down_only() {
    let all = Crate::read();
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (own, file) in &all.modules {
        if file == Path::new("lib.rs") {
            continue;
        }
        let name = layer(file);
        seen.insert(name);
        let (_, _, below) = LAYERS.iter().find(|(other, _, _)| *other == name).unwrap();
        for to in all.arrows(own, file) {
            let there = if to == Path::new("lib.rs") {
                "the crate's root, by a re-export"
            } else {
                layer(to)
            };
            if there != name && !below.contains(&there) {
                wrong.push(format!(
                    "{} names {} ({there})",
                    file.display(),
                    to.display()
                ));
            }
        }
        let code = &all.code[file];
        for bindings in BINDINGS {
            if name != "sys" && code.contains(bindings) {
                wrong.push(format!("{} names {bindings}", file.display()));
            }
        }
        if ["link", "engine", "handles"].contains(&name) {
            for below in BELOW_TRANSPORTS {
                if code.contains(below) {
                    wrong.push(format!("{} names {below}", file.display()));
                }
            }
        }
    }
    assert_eq!(seen.len(), LAYERS.len(), "every layer has files: {seen:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_folders_of_verbs_name_those_before_them_only() {
    let all = Crate::read();
    let rank = |file: &Path| {
        let folder = file.strip_prefix("verbs").ok()?.iter().next()?;
        FOLDERS_OF_VERBS.iter().position(|name| folder == *name)
    };
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (own, file) in &all.modules {
        let Some(from) = rank(file) else {
            continue;
        };
        seen.insert(from);
        for to in all.arrows(own, file) {
            if rank(to).is_some_and(|to| to > from) {
                wrong.push(format!("{} names {}", file.display(), to.display()));
            }
        }
    }
    assert_eq!(seen.len(), FOLDERS_OF_VERBS.len(), "every folder has files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a file defines something, beside naming what its folder has.
fn defines(code: &str) -> bool {
    const KEYWORDS: &[&str] = &["struct", "enum", "fn", "trait", "impl", "static", "type"];
    code.lines().any(|line| {
        let line = line.strip_prefix("pub").unwrap_or(line);
        let line = match line.strip_prefix('(') {
            Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
            None => line,
        };
        KEYWORDS.contains(&word(line.trim_start_matches(' ')).0) && !line.starts_with("    ")
    })
}

/// What counts as one: an object whose parts are files of a folder. That is `reactor.rs` with
/// `reactor/`, or the folder of a `mod.rs` that defines the object itself.
fn unit(file: &Path, all: &Crate) -> PathBuf {
    let folder = file.parent().unwrap();
    let whole = folder.with_extension("rs");
    if folder != Path::new("") && all.code.contains_key(&whole) {
        return whole;
    }
    let main = folder.join("mod.rs");
    match all.code.get(&main) {
        Some(code) if defines(code) => main,
        _ => file.to_path_buf(),
    }
}

/// A layer's `mod.rs` says what the layer is, and what of it others may name.
#[test]
fn no_layer_hides_in_its_mod_file() {
    let all = Crate::read();
    for (file, code) in &all.code {
        let is_layer = file.iter().count() == 2 && file.ends_with("mod.rs");
        assert!(!is_layer || !defines(code), "{} defines", file.display());
    }
}

#[test]
fn no_files_go_round_in_circles() {
    let all = Crate::read();
    let mut arrows: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
    for (own, file) in &all.modules {
        // A file that names its folder's files for others is no object.
        if !file.ends_with("mod.rs") && !file.ends_with("lib.rs") || defines(&all.code[file]) {
            let from = unit(file, &all);
            let to = all.arrows(own, file).into_iter();
            arrows
                .entry(from.clone())
                .or_default()
                .extend(to.map(|to| unit(to, &all)).filter(|to| *to != from));
        }
    }
    // Files without arrows to files that are left go, until none does.
    loop {
        let free: Vec<PathBuf> = arrows
            .iter()
            .filter(|(_, to)| !to.iter().any(|to| arrows.contains_key(to)))
            .map(|(from, _)| from.clone())
            .collect();
        if free.is_empty() {
            break;
        }
        for file in free {
            arrows.remove(&file);
        }
    }
    // Those that only lead into a circle go as well.
    loop {
        let named: BTreeSet<PathBuf> = arrows.values().flatten().cloned().collect();
        let before = arrows.len();
        arrows.retain(|from, _| named.contains(from));
        if arrows.len() == before {
            break;
        }
    }
    let left: Vec<String> = arrows
        .iter()
        .map(|(from, to)| {
            let to: Vec<String> = to
                .iter()
                .filter(|to| arrows.contains_key(*to))
                .map(|to| to.display().to_string())
                .collect();
            format!("{} -> {}", from.display(), to.join(", "))
        })
        .collect();
    assert!(
        left.is_empty(),
        "circles in {}:\n{}",
        all.root.display(),
        left.join("\n")
    );
}

/// The files and folders that a page of prose names, with the line: `` `src/a/b.rs`, `c.rs` ``
/// names `src/a/c.rs`.
fn mentioned(page: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let mut folder = String::new();
        for quoted in line.split('`').skip(1).step_by(2) {
            let is_path = quoted.starts_with("src/") || quoted.starts_with("integration/");
            let is_file = quoted.ends_with(".rs") && !quoted.contains('/') && !folder.is_empty();
            if is_path {
                folder = match quoted.rsplit_once('/') {
                    Some((folder, "")) => folder.rsplit_once('/').map_or("", |(up, _)| up).into(),
                    Some((folder, _)) => folder.into(),
                    None => String::new(),
                };
                all.push((number, quoted.into()));
            } else if is_file && line.starts_with('|') {
                all.push((number, format!("{folder}/{quoted}")));
            }
        }
    }
    all
}

#[test]
fn the_map_names_files_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let mentioned = mentioned(&page);
    assert!(mentioned.len() > 60, "{mentioned:?}");
    let missing: Vec<_> = mentioned
        .iter()
        .filter(|(_, path)| !root.join(path).exists())
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md: {missing:?}");
}
