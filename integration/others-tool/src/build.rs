//! Generates a crate with the suites' programs, and builds it without the tests that do not
//! compile.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    file::{File, write},
    record::{Record, Test, list},
    suite::Suite,
};

/// The line of the root that puts rdmsg's types in the place of std's.
const TYPES: &str = "    pub use rdmsg::{Stream as TcpStream, StreamListener as TcpListener};\n";

/// The generated crate.
#[derive(Debug)]
pub(crate) struct Generated {
    folder: PathBuf,
    files: Vec<File>,
    /// The programs by name, once they are built.
    programs: BTreeMap<String, PathBuf>,
}

impl Generated {
    /// Writes the manifest of a crate without programs.
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
        // rdmsg's dependencies have the versions of this checkout. Cargo adds the suites'.
        let lock = fs::read_to_string("Cargo.lock")?;
        if write(&folder.join("Cargo.lock.copied"), &lock)? {
            fs::write(folder.join("Cargo.lock"), lock)?;
        }
        let (files, programs) = (Vec::new(), BTreeMap::new());
        Ok(Self {
            folder,
            files,
            programs,
        })
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }

    /// Adds the programs of a suite: with sockets, and with rdmsg.
    pub(crate) fn add(&mut self, suite: &Suite) -> Result<()> {
        let root = include_str!("../root.rs");
        ensure!(root.contains(TYPES), "root.rs does not have {TYPES}");
        let modules: String = suite
            .modules
            .iter()
            .map(|name| format!("mod {name};\n"))
            .collect();
        let [sockets, rdmsg] = suite.programs();
        for (program, root) in [(sockets, root.replace(TYPES, "")), (rdmsg, root.to_owned())] {
            let folder = Path::new("tests").join(&program);
            let root_file = self.folder.join(&folder).join("main.rs");
            write(&root_file, &format!("{root}\n{modules}"))?;
            for (module, text) in suite.modules.iter().zip(suite.read(&program)?) {
                let path = folder.join(module).with_extension("rs");
                self.files.push(File::new(path, &text));
            }
            self.programs.insert(program, PathBuf::new());
        }
        Ok(())
    }

    /// Builds the programs. Leaves out the items that do not compile with rdmsg, until the others
    /// do.
    pub(crate) fn build(&mut self) -> Result<()> {
        println!(
            "others: building; a test that does not compile with rdmsg is left out, and fails"
        );
        loop {
            for file in &self.files {
                file.write(&self.folder)?;
            }
            let mut cargo = Command::new("cargo");
            cargo.args(["build", "--keep-going", "--message-format=json"]);
            cargo.arg("--manifest-path").arg(self.manifest());
            // The checkout's folder has most of the dependencies.
            cargo.arg("--target-dir").arg(self.folder.join(".."));
            cargo.args(self.programs.keys().flat_map(|name| ["--test", name]));
            let output = cargo.stderr(Stdio::inherit()).output();
            let output = output.context("cannot run cargo")?;
            let mut errors = Vec::new();
            for line in String::from_utf8(output.stdout)?.lines() {
                let mut message: Value = serde_json::from_str(line).unwrap_or_default();
                let name = message["target"]["name"].as_str().unwrap_or_default();
                if let Some(path) = message["executable"].as_str() {
                    self.programs.insert(name.to_owned(), path.into());
                } else if message["message"]["level"] == "error" {
                    errors.push(message["message"].take());
                }
            }
            if output.status.success() {
                return Ok(());
            }
            let mut is_less = false;
            for error in &errors {
                let rendered = error["rendered"].as_str().unwrap_or_default();
                is_less |= self.leave_out(error).context(rendered.to_owned())?;
            }
            ensure!(is_less, "the suites do not build (see above)");
        }
    }

    /// Leaves out the item to which a compiler's error belongs. Returns whether it was there.
    fn leave_out(&mut self, error: &Value) -> Result<bool> {
        let text = error["message"].as_str().unwrap_or_default();
        let mut spans = error["spans"].as_array().into_iter().flatten();
        let Some(mut span) = spans.find(|span| span["is_primary"] == true) else {
            // The number of errors.
            return Ok(false);
        };
        while span["expansion"].is_object() {
            span = &span["expansion"]["span"];
        }
        let path = Path::new(span["file_name"].as_str().unwrap_or_default());
        let mut files = self.files.iter_mut();
        let file = files.find(|file| path.ends_with(&file.path) && file.is_with_rdmsg());
        let file = file.context("no file of a suite with rdmsg")?;
        // If the item uses another that was left out, the error is that of the other.
        let mut names = text.split('`').skip(1).step_by(2);
        let cause = names.find_map(|name| file.error_of(name)).unwrap_or(text);
        let cause = cause.to_owned();
        Ok(file.leave_out(span["line_start"].as_u64().unwrap_or(1) as usize, &cause))
    }

    /// Lists the tests of a suite.
    pub(crate) fn record(&self, suite: &Suite) -> Result<Record> {
        let names = suite.programs();
        let programs = [&names[0], &names[1]].map(|name| self.programs[name].clone());
        let with_rdmsg = list(&programs[1])?;
        let mut tests = Vec::new();
        for name in list(&programs[0])? {
            let mut error = None;
            if !with_rdmsg.contains(&name) {
                let (module, function) =
                    name.split_once("::").context("a test without a module")?;
                let path = Path::new("tests")
                    .join(&names[1])
                    .join(module)
                    .with_extension("rs");
                let file = self.files.iter().find(|file| file.path == path);
                let cause = file.and_then(|file| file.error_of(function));
                error = Some(cause.with_context(|| format!("{name} is lost"))?.to_owned());
            }
            let outcomes = BTreeMap::new();
            tests.push(Test {
                name,
                error,
                outcomes,
            });
        }
        ensure!(!tests.is_empty(), "the suite {} has no tests", suite.name);
        let (suite, version) = (suite.name.to_owned(), suite.version.clone());
        Ok(Record {
            suite,
            version,
            programs,
            tests,
        })
    }
}
