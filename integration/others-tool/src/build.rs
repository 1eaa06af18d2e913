//! Generates a crate with the test programs of the suites, and builds this crate.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use toolbox::{TestProgram, tests_of};

use crate::{
    record::{Record, Test, list},
    suite::Suite,
};

/// The line of root.rs that makes rdmsg's types available under the names of std's types.
const TYPES: &str = "    pub use rdmsg::{Stream as TcpStream, StreamListener as TcpListener};\n";

/// Creates a crate without programs in `folder`. Returns the path of the crate's manifest.
pub(crate) fn generate(folder: &Path, with_hyper: bool) -> Result<PathBuf> {
    let checkout = env::current_dir()?;
    let (hyper, feature) = if with_hyper {
        (include_str!("../hyper.toml"), "hyper-util")
    } else {
        ("", "tokio")
    };
    let manifest = format!(
        "{}{hyper}rdmsg = {{ path = {checkout:?}, features = [{feature:?}] }}\n",
        include_str!("../manifest.toml"),
    );
    write(&folder.join("Cargo.toml"), &manifest)?;
    write(&folder.join("src/lib.rs"), "")?;
    // Copy the lock file, so that rdmsg's dependencies have the same versions as in this checkout.
    // `Cargo.lock.copied` is a second copy, because cargo later adds the suites' dependencies to
    // `Cargo.lock`. `write` compares the second copy with this checkout's lock file, and returns
    // true if the lock file has changed since the last copy.
    let lock = fs::read_to_string("Cargo.lock")?;
    if write(&folder.join("Cargo.lock.copied"), &lock)? {
        fs::write(folder.join("Cargo.lock"), lock)?;
    }
    Ok(folder.join("Cargo.toml"))
}

/// Adds two programs for each suite to the crate in `folder`, and builds them. Returns the tests of
/// each suite.
pub(crate) fn build(folder: &Path, suites: &[Suite]) -> Result<Vec<Record>> {
    let mut arguments = vec![
        "build".to_owned(),
        format!("--manifest-path={}", folder.join("Cargo.toml").display()),
        // Use this checkout's target folder, which already contains most of the dependencies.
        format!("--target-dir={}", folder.join("..").display()),
    ];
    for suite in suites {
        add(folder, suite)?;
        arguments.extend(suite.programs().map(|name| format!("--test={name}")));
    }
    println!("others: building");
    let built = tests_of(&arguments)
        .context("the suites do not build; substitutions.txt can remove a test")?;
    let program = |test: TestProgram| (test.name, test.program.display().to_string());
    let built: BTreeMap<String, String> = built.into_iter().map(program).collect();
    suites.iter().map(|suite| record(suite, &built)).collect()
}

/// Adds the two programs of a suite: one with sockets, and one with rdmsg.
fn add(folder: &Path, suite: &Suite) -> Result<()> {
    let root = include_str!("../root.rs");
    ensure!(root.contains(TYPES), "root.rs does not contain {TYPES}");
    let modules = suite.files.iter().map(|(name, _)| format!("mod {name};\n"));
    let modules: String = modules.collect();
    let [sockets, rdmsg] = suite.programs();
    for (program, root) in [(sockets, root.replace(TYPES, "")), (rdmsg, root.to_owned())] {
        let folder = folder.join("tests").join(&program);
        write(&folder.join("main.rs"), &format!("{root}\n{modules}"))?;
        for (module, text) in suite.read(&program)? {
            write(&folder.join(module).with_extension("rs"), &text)?;
        }
    }
    Ok(())
}

/// Lists the tests of a suite. `built` contains the paths of the programs by name.
fn record(suite: &Suite, built: &BTreeMap<String, String>) -> Result<Record> {
    let programs = suite.programs().map(|name| built[&name].clone());
    let with_rdmsg = list(&programs[1])?;
    let tests = list(&programs[0])?.into_iter().map(|name| Test {
        compiles: with_rdmsg.contains(&name),
        name,
        outcomes: BTreeMap::new(),
    });
    let tests: Vec<_> = tests.collect();
    ensure!(!tests.is_empty(), "the suite {} has no tests", suite.name);
    Ok(Record {
        suite: suite.name.to_owned(),
        version: suite.version.clone(),
        programs,
        tests,
    })
}

/// Writes `text` to a file if the file has other content. Returns true if the file was written. If
/// the content is the same, the file keeps its time stamp, so cargo does not build the crate again.
fn write(path: &Path, text: &str) -> Result<bool> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(false);
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, text)?;
    Ok(true)
}
