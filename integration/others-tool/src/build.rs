//! Generates a crate with the test programs of the suites, and builds this crate.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use toolbox::tests_of;

use crate::{
    record::{Record, Test, list},
    suite::Suite,
};

/// The line of root.rs that makes rdmsg's types available under the names of std's types.
const TYPES: &str = "    pub use rdmsg::{Stream as TcpStream, StreamListener as TcpListener};\n";

/// The generated crate.
#[derive(Debug)]
pub(crate) struct Generated {
    folder: PathBuf,
    /// The paths of the programs by name. A path is empty until the program is built.
    programs: BTreeMap<String, PathBuf>,
}

impl Generated {
    /// Creates a crate without programs, and writes its manifest.
    pub(crate) fn new(folder: PathBuf, with_hyper: bool) -> Result<Self> {
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
        // Copy the lock file, so that rdmsg's dependencies have the same versions as in this
        // checkout. `Cargo.lock.copied` is a second copy, because cargo later adds the suites'
        // dependencies to `Cargo.lock`. `write` compares the second copy with this checkout's lock
        // file, and returns true if the lock file has changed since the last copy.
        let lock = fs::read_to_string("Cargo.lock")?;
        if write(&folder.join("Cargo.lock.copied"), &lock)? {
            fs::write(folder.join("Cargo.lock"), lock)?;
        }
        let programs = BTreeMap::new();
        Ok(Self { folder, programs })
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }

    /// Adds the two programs of a suite: one with sockets, and one with rdmsg.
    pub(crate) fn add(&mut self, suite: &Suite) -> Result<()> {
        let root = include_str!("../root.rs");
        ensure!(root.contains(TYPES), "root.rs does not contain {TYPES}");
        let modules = suite.modules.iter().map(|name| format!("mod {name};\n"));
        let modules: String = modules.collect();
        let [sockets, rdmsg] = suite.programs();
        for (program, root) in [(sockets, root.replace(TYPES, "")), (rdmsg, root.to_owned())] {
            let folder = self.folder.join("tests").join(&program);
            write(&folder.join("main.rs"), &format!("{root}\n{modules}"))?;
            for (module, text) in suite.modules.iter().zip(suite.read(&program)?) {
                write(&folder.join(module).with_extension("rs"), &text)?;
            }
            self.programs.insert(program, PathBuf::new());
        }
        Ok(())
    }

    pub(crate) fn build(&mut self) -> Result<()> {
        println!("others: building");
        // Use this checkout's target folder, which already contains most of the dependencies.
        let (manifest, target) = (self.manifest(), self.folder.join(".."));
        let mut arguments = vec![
            "build".as_ref(),
            "--manifest-path".as_ref(),
            manifest.as_os_str(),
        ];
        arguments.extend(["--target-dir".as_ref(), target.as_os_str()]);
        arguments.extend(
            self.programs
                .keys()
                .flat_map(|name| ["--test", name].map(OsStr::new)),
        );
        let built = tests_of(&arguments)
            .context("the suites do not build; substitutions.txt can remove a test")?;
        let built = built.into_iter().map(|test| (test.name, test.program));
        self.programs.extend(built);
        Ok(())
    }

    /// Lists the tests of a suite. The suite's programs must already be built.
    pub(crate) fn record(&self, suite: &Suite) -> Result<Record> {
        let programs = suite.programs().map(|name| self.programs[&name].clone());
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
