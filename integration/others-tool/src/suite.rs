//! Finds the files of the suites, and downloads them if necessary.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;
use toolbox::sections;

/// The versions of std for which substitutions exist: those of Debian 12, Ubuntu 24.04 and Debian
/// 13.
pub(crate) const STD: [&str; 3] = ["1.63.0", "1.75.0", "1.85.1"];

/// The names of the test files in the packages.
const TOKIO: &str = "tcp_accept tcp_accept_ready tcp_connect tcp_echo tcp_into_split tcp_into_std \
                     tcp_peek tcp_shutdown tcp_split tcp_stream";
const HYPER_UTIL: &str = "legacy_client proxy test_utils";

/// A project with tests of TCP sockets that this tool can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    Std,
    Tokio,
    HyperUtil,
}

/// A suite whose files are on this machine.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    /// The modules of the suite's programs: the name and the file of each.
    pub(crate) files: Vec<(&'static str, PathBuf)>,
}

impl Suite {
    /// Finds a suite, and downloads it if it is not on this machine. Returns `None` if there are no
    /// substitutions for the distribution's version of std.
    pub(crate) fn find(name: Name, manifest: &Path) -> Result<Option<Self>> {
        match name {
            Name::Std => Self::of_apt(),
            Name::Tokio => Self::of_cargo("tokio", TOKIO, manifest).map(Some),
            Name::HyperUtil => Self::of_cargo("hyper-util", HYPER_UTIL, manifest).map(Some),
        }
    }

    /// Finds std's tests in the distribution's package `rust-src`, which is installed if necessary.
    fn of_apt() -> Result<Option<Self>> {
        let find = || {
            STD.iter().find_map(|version| {
                let sources = format!("/usr/src/rustc-{version}/library/std/src");
                let file = PathBuf::from(sources + "/net/tcp/tests.rs");
                file.exists().then(|| Self {
                    name: "std",
                    version: version.to_string(),
                    files: vec![("tcp", file)],
                })
            })
        };
        if let Some(suite) = find() {
            return Ok(Some(suite));
        }
        println!("others: installing the package rust-src");
        output(Command::new("integration/packages").args(["--package", "rust-src"]))
            .context("the package rust-src was not installed: are apt's sources reachable?")?;
        Ok(find())
    }

    /// Finds the tests of a package that is a dependency of the generated manifest.
    fn of_cargo(name: &'static str, files: &'static str, manifest: &Path) -> Result<Self> {
        // The filter prevents cargo from downloading packages that only other platforms need.
        let host = output(Command::new("rustc").args(["--print", "host-tuple"]))?;
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--format-version=1", "--filter-platform"]);
        cargo.args([host.trim(), "--manifest-path"]).arg(manifest);
        let metadata = output(&mut cargo)
            .context("cargo did not fetch the suites: is its registry reachable?")?;
        let metadata: Value = serde_json::from_str(&metadata)?;
        let mut packages = metadata["packages"].as_array().into_iter().flatten();
        let package = packages.find(|package| package["name"] == name);
        let package = package.with_context(|| format!("the manifest does not contain {name}"))?;
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let tests = Path::new(&text("manifest_path")).with_file_name("tests");
        let file = |module| {
            let files = [format!("{module}.rs"), format!("{module}/mod.rs")];
            let [file, folder] = files.map(|file| tests.join(file));
            (module, if file.exists() { file } else { folder })
        };
        Ok(Self {
            name,
            version: text("version"),
            files: files.split(' ').map(file).collect(),
        })
    }

    /// Returns the names of the two programs of the suite: first the one with sockets, then the one
    /// with rdmsg.
    pub(crate) fn programs(&self) -> [String; 2] {
        ["sockets", "rdmsg"].map(|types| format!("{}_{types}", self.name))
    }

    /// Reads the suite's files. Returns the modules with their texts after the substitutions for
    /// this program.
    pub(crate) fn read(&self, program: &str) -> Result<Vec<(&'static str, String)>> {
        let mut texts = Vec::new();
        for (module, path) in &self.files {
            let text = fs::read_to_string(path).with_context(|| format!("reading {path:?}"))?;
            texts.push((*module, text));
        }
        for (title, lines) in sections(include_str!("../substitutions.txt")) {
            let words: Vec<_> = title.split(' ').collect();
            let types = words[words.len() - 1];
            let applies = (words[0] == self.name && (words.len() < 3 || words[1] == self.version))
                && (types == "both" || program.ends_with(types));
            for line in lines.into_iter().filter(|_| applies) {
                let (from, to) = line.split_once(" ~> ").context(line)?;
                let is_there = texts.iter().any(|(_, text)| text.contains(from));
                let Self { name, version, .. } = self;
                ensure!(is_there, "{name} {version} does not contain `{from}`");
                for (_, text) in &mut texts {
                    *text = text.replace(from, to);
                }
            }
        }
        Ok(texts)
    }
}

/// Runs a command and waits until it ends. Returns the command's stdout.
fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
