//! Generates a crate with the suites' programs, and builds it without what does not compile.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
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
    pub(crate) fn new(folder: PathBuf) -> Result<Self> {
        let checkout = env::current_dir()?;
        let manifest = format!(
            "{}rdmsg = {{ path = {checkout:?}, features = [\"tokio\"] }}\n",
            include_str!("../manifest.toml")
        );
        write(&folder.join("Cargo.toml"), &manifest)?;
        write(&folder.join("src/lib.rs"), "")?;
        // rdmsg's dependencies have the versions of this checkout. Cargo adds the suites'.
        let (lock, copy) = (
            fs::read_to_string("Cargo.lock")?,
            folder.join("Cargo.lock.copied"),
        );
        if fs::read_to_string(&copy).ok().as_ref() != Some(&lock) {
            fs::write(folder.join("Cargo.lock"), &lock)?;
            fs::write(copy, lock)?;
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
        ensure!(
            root.contains(TYPES),
            "root.rs does not have the line with the types"
        );
        let [sockets, rdmsg] = suite.programs();
        for (program, root) in [(sockets, root.replace(TYPES, "")), (rdmsg, root.to_owned())] {
            let folder = Path::new("tests").join(&program);
            let modules = suite
                .modules
                .iter()
                .map(|module| format!("mod {module};\n"));
            let root = format!("{root}\n{}", modules.collect::<String>());
            write(&self.folder.join(&folder).join("main.rs"), &root)?;
            for (module, text) in suite.modules.iter().zip(suite.read(&program)?) {
                self.files
                    .push(File::new(folder.join(format!("{module}.rs")), &text));
            }
            self.programs.insert(program, PathBuf::new());
        }
        Ok(())
    }

    /// Builds the programs. Leaves out what does not compile with rdmsg, until the rest does.
    pub(crate) fn build(&mut self) -> Result<()> {
        println!("others: building; what does not compile with rdmsg is left out, and fails");
        loop {
            for file in &self.files {
                file.write(&self.folder)?;
            }
            let mut cargo = Command::new("cargo");
            cargo.args([
                "build",
                "--keep-going",
                "--message-format=json",
                "--manifest-path",
            ]);
            cargo.arg(self.manifest());
            cargo.args(self.programs.keys().flat_map(|name| ["--test", name]));
            // The checkout's folder, which has most of the dependencies.
            cargo.arg("--target-dir").arg(self.folder.join(".."));
            let output = cargo
                .stderr(Stdio::inherit())
                .output()
                .context("cannot run cargo")?;
            let said = String::from_utf8(output.stdout)?;
            let messages = said
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            let mut errors: Vec<Value> = Vec::new();
            for mut message in messages.collect::<Vec<Value>>() {
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
            // All of them: one may cause another.
            let left_out: Vec<_> = errors.iter().map(|error| self.leave_out(error)).collect();
            if let Some(at) = left_out.iter().position(|is_left_out| !is_left_out) {
                let error = errors[at]["rendered"].as_str().unwrap_or_default();
                bail!("the suites do not build: {error}");
            }
            ensure!(
                !errors.is_empty(),
                "cargo could not build the suites (see above)"
            );
        }
    }

    /// Leaves the item out to which a compiler's error belongs. Returns whether it is of a program
    /// with rdmsg.
    fn leave_out(&mut self, error: &Value) -> bool {
        let text = error["message"].as_str().unwrap_or_default();
        let mut spans = error["spans"].as_array().into_iter().flatten();
        let Some(mut span) = spans.find(|span| span["is_primary"] == true) else {
            // "aborting due to 3 previous errors".
            return true;
        };
        while span["expansion"].is_object() {
            span = &span["expansion"]["span"];
        }
        let path = Path::new(span["file_name"].as_str().unwrap_or_default());
        let mut files = self.files.iter_mut();
        let Some(file) = files.find(|file| path.ends_with(&file.path)) else {
            return false;
        };
        // An item that uses one that was left out has its error.
        let mut names = text.split('`').skip(1).step_by(2);
        let cause = names
            .find_map(|name| file.error_of(name))
            .unwrap_or(text)
            .to_owned();
        let line = span["line_start"].as_u64().unwrap_or(1) as usize;
        file.is_with_rdmsg() && file.leave_out(line, &cause)
    }

    /// Lists the tests of a suite.
    pub(crate) fn record(&self, suite: &Suite) -> Result<Record> {
        let [sockets, rdmsg] = suite.programs();
        let programs = [&self.programs[&sockets], &self.programs[&rdmsg]].map(PathBuf::clone);
        let with_rdmsg = list(&programs[1])?;
        let tests = list(&programs[0])?.into_iter().map(|name| {
            let (module, function) = name.split_once("::").context("a test without a module")?;
            let path = Path::new("tests").join(&rdmsg).join(format!("{module}.rs"));
            let mut files = self.files.iter();
            let error = files
                .find(|file| file.path == path)
                .and_then(|file| file.error_of(function));
            let error = (!with_rdmsg.contains(&name)).then(|| {
                error
                    .map(str::to_owned)
                    .with_context(|| format!("{name} is missing with rdmsg"))
            });
            Ok(Test {
                error: error.transpose()?,
                name,
                outcomes: BTreeMap::new(),
            })
        });
        let tests = tests.collect::<Result<Vec<_>>>()?;
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
