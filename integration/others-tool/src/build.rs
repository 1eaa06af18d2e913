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
    sources::{Sources, read},
    suites::{DEPENDENCIES, Suite},
};

/// The line of the root that puts rdmsg's types in the place of std's.
const TYPES: &str = "    pub use rdmsg::{Stream as TcpStream, StreamListener as TcpListener};\n";

/// The types that a program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Types {
    Sockets,
    Rdmsg,
}

/// The generated crate.
#[derive(Debug)]
pub(crate) struct Generated {
    folder: PathBuf,
    files: Vec<File>,
    /// The names of the programs.
    names: Vec<String>,
    programs: BTreeMap<String, PathBuf>,
}

impl Generated {
    /// Writes the manifest of a crate without programs.
    pub(crate) fn new(folder: PathBuf) -> Result<Self> {
        let here = env::current_dir()?;
        let manifest = format!(
            "[package]\nname = \"others\"\nedition = \"2021\"\n\n[workspace]\n\n[features]\n\
             default = [\"full\", \"io-util\", \"macros\", \"net\", \"rt\"]\nfull = []\n\
             io-util = []\nmacros = []\nnet = []\nrt = []\n\n[dev-dependencies]\n\
             rdmsg = {{ path = {here:?}, features = [\"tokio\"] }}{DEPENDENCIES}\n\
             [profile.dev]\ndebug = \"line-tables-only\"\nopt-level = 1\n\n\
             [profile.dev.package]\n\"*\" = {{ opt-level = 0, debug = false }}\n"
        );
        write(&folder.join("Cargo.toml"), &manifest)?;
        write(&folder.join("src/lib.rs"), "")?;
        // The same versions as here, of what both depend on.
        let lock = fs::read_to_string("Cargo.lock")?;
        if fs::read_to_string(folder.join("Cargo.lock.from"))
            .ok()
            .as_ref()
            != Some(&lock)
        {
            fs::write(folder.join("Cargo.lock"), &lock)?;
            fs::write(folder.join("Cargo.lock.from"), &lock)?;
        }
        Ok(Self {
            folder,
            files: Vec::new(),
            names: Vec::new(),
            programs: BTreeMap::new(),
        })
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }

    /// Adds a program with the files of a suite.
    pub(crate) fn add(&mut self, suite: &Suite, sources: &Sources, types: Types) -> Result<()> {
        let name = types.program(suite);
        let mut root = include_str!("../root.rs").to_owned();
        ensure!(root.contains(TYPES), "root.rs does not have the types");
        if types == Types::Sockets {
            root = root.replace(TYPES, "");
        }
        let folder = Path::new("tests").join(&name);
        let mut texts = Vec::new();
        for file in suite.files {
            root += &format!("\nmod {file};");
            texts.push(read(suite, sources, file)?);
        }
        let more = match types {
            Types::Sockets => suite.sockets,
            Types::Rdmsg => suite.rdmsg,
        };
        for (from, to) in suite.both.iter().chain(more) {
            ensure!(
                texts.iter().any(|text| text.contains(from)),
                "the files of {} do not have {from:?}, which a rule replaces",
                suite.name
            );
            for text in &mut texts {
                *text = text.replace(from, to);
            }
        }
        write(&self.folder.join(&folder).join("main.rs"), &(root + "\n"))?;
        for (file, text) in suite.files.iter().zip(texts) {
            self.files
                .push(File::new(folder.join(format!("{file}.rs")), &text));
        }
        self.names.push(name);
        Ok(())
    }

    /// Builds the programs. Leaves out what does not compile, until the rest does.
    pub(crate) fn build(&mut self) -> Result<()> {
        println!("others: building; tests that do not compile with rdmsg are left out, and fail");
        loop {
            for file in &self.files {
                file.write(&self.folder)?;
            }
            let mut cargo = Command::new("cargo");
            cargo.args(["build", "--keep-going", "--message-format=json"]);
            cargo.arg("--manifest-path").arg(self.manifest());
            cargo.args(self.names.iter().flat_map(|name| ["--test", name]));
            // `target/` of the checkout, with what is built there already.
            cargo
                .arg("--target-dir")
                .arg(self.folder.parent().context("no target")?);
            let output = cargo
                .stderr(Stdio::inherit())
                .output()
                .context("cannot run cargo")?;
            let said = String::from_utf8(output.stdout)?;
            let messages = said
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            let messages: Vec<Value> = messages.collect();
            for message in &messages {
                if let (Some(name), Some(path)) = (
                    message["target"]["name"].as_str(),
                    message["executable"].as_str(),
                ) {
                    self.programs.insert(name.to_owned(), path.into());
                }
            }
            if output.status.success() {
                return Ok(());
            }
            let errors = messages.iter().map(|message| &message["message"]);
            let errors: Vec<_> = errors
                .filter(|message| message["level"] == "error")
                .collect();
            if !errors
                .iter()
                .fold(false, |any, error| self.leave_out(error) || any)
            {
                let first = errors.first().and_then(|error| error["rendered"].as_str());
                bail!("the suites do not build: {}", first.unwrap_or("see above"));
            }
        }
    }

    /// Leaves out the item to which a compiler's error belongs. Returns whether there is one that
    /// was not left out before.
    fn leave_out(&mut self, error: &Value) -> bool {
        let text = error["message"].as_str().unwrap_or_default();
        let spans = error["spans"].as_array().into_iter().flatten();
        let mut left_out = false;
        for mut span in spans.filter(|span| span["is_primary"] == true) {
            while span["expansion"].is_object() {
                span = &span["expansion"]["span"];
            }
            let path = Path::new(span["file_name"].as_str().unwrap_or_default());
            let line = span["line_start"].as_u64().unwrap_or(0) as usize;
            let mut files = self.files.iter_mut();
            let Some(file) = files.find(|file| path.ends_with(&file.path)) else {
                continue;
            };
            // With sockets everything compiles.
            if line == 0
                || path
                    .iter()
                    .any(|part| part.to_string_lossy().ends_with("_sockets"))
            {
                continue;
            }
            // The error of what is left out already, which this item uses.
            let words = text.split('`').skip(1).step_by(2);
            let cause = words
                .filter_map(|word| file.error_of(word))
                .next()
                .map(str::to_owned);
            left_out |= file.leave_out(line, &cause.unwrap_or_else(|| text.to_owned()));
        }
        left_out
    }

    /// Returns a suite's program.
    pub(crate) fn program(&self, suite: &Suite, types: Types) -> Result<&Path> {
        let name = types.program(suite);
        let program = self.programs.get(&name);
        Ok(program.with_context(|| format!("cargo built no {name}"))?)
    }

    /// Returns the compiler's error for a test that was left out.
    pub(crate) fn error_of(&self, suite: &Suite, test: &str) -> Result<String> {
        let (module, name) = test.split_once("::").context("a test without a module")?;
        let path = Path::new("tests")
            .join(Types::Rdmsg.program(suite))
            .join(format!("{module}.rs"));
        let file = self.files.iter().find(|file| file.path == path);
        let error = file.and_then(|file| file.error_of(name));
        let error = error.with_context(|| format!("{test} is missing, though it compiles"))?;
        Ok(format!("does not compile: {error}"))
    }
}

impl Types {
    fn program(self, suite: &Suite) -> String {
        format!("{}_{}", suite.name, format!("{self:?}").to_lowercase())
    }
}
