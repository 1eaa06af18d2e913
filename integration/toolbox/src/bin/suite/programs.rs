//! The test programs, and the devices on which they run.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use toolbox::{sections, words};

use crate::only::Only;

/// Returns the cargo command for the tests that need no device, or `None` if no test is selected.
/// The command names the same packages as the build. With fewer packages, cargo would select fewer
/// features, and would build the tests again.
pub(crate) fn anywhere(built: &[Test], track: &str, only: &Only) -> Result<Option<String>> {
    let mut line = format!("cargo test {} --locked", only.packages());
    if only.selects(track) {
        line += " --lib --bins";
    }
    let any: Vec<_> = built
        .iter()
        .filter(|test| !test.is_of_device && !is_listed("only in the lab", &test.name))
        .collect();
    let selected = only.of(track, &any);
    for test in &selected {
        let same = |other: &&Test| other.is_of_device && other.name == test.name;
        if built.iter().any(|other| same(&other)) {
            bail!(
                "{} is the name of two programs, with and without a device",
                test.name
            );
        }
        line += &format!(" --test {}", test.name);
    }
    Ok((!selected.is_empty()).then_some(line))
}

/// A program of tests.
pub(crate) struct Test {
    /// Whether the program belongs to the package `device`.
    is_of_device: bool,
    pub(crate) name: String,
    pub(crate) program: PathBuf,
}

#[cfg(test)]
impl Test {
    /// Returns a test program with the name `name` and an empty path.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            is_of_device: true,
            name: name.to_owned(),
            program: PathBuf::new(),
        }
    }
}

/// The programs with device tests.
#[derive(Default)]
pub(crate) struct DeviceTests {
    pub(crate) one: Vec<Test>,
    pub(crate) two: Vec<Test>,
}

impl DeviceTests {
    pub(crate) fn new(mut built: Vec<Test>) -> Result<Self> {
        // Sort the programs: cargo reports them in the order in which their builds have finished.
        built.sort_by(|a, b| a.name.cmp(&b.name));
        built.retain(|test| {
            let lists = ["anywhere", "only in the lab"];
            test.is_of_device || lists.iter().any(|list| is_listed(list, &test.name))
        });
        let is_of_two = |test: &Test| test.is_of_device && test.name.ends_with("two_hosts");
        let (two, one): (Vec<_>, Vec<_>) = built.into_iter().partition(is_of_two);
        ensure!(
            !one.is_empty() && !two.is_empty(),
            "cargo built no device tests"
        );
        Ok(Self { one, two })
    }

    /// Returns the single-host programs that also run on software iWARP: all of them if `all` is
    /// set, and otherwise those that are listed as short.
    pub(crate) fn on_iwarp(&self, all: bool) -> Vec<&Test> {
        let applies = |test: &&Test| {
            !is_listed("not on iWARP", &test.name)
                && (all || is_listed("short on iWARP", &test.name))
        };
        self.one.iter().filter(applies).collect()
    }

    /// Returns the path of the test program named `name`.
    pub(crate) fn program(&self, name: &str) -> Result<&Path> {
        let mut all = self.one.iter().chain(&self.two);
        let test = all
            .find(|test| test.name == name)
            .with_context(|| format!("there is no test program {name}"))?;
        Ok(&test.program)
    }
}

/// Returns the names in a section of `programs.txt`, each with the reason or an empty text.
pub(crate) fn listed(section: &str) -> Vec<(&'static str, &'static str)> {
    let mut sections = sections(include_str!("programs.txt"));
    let found = sections.find(|(title, _)| *title == section);
    let (_, lines) = found.expect("a test has found all sections");
    let lines = lines.into_iter();
    lines
        .map(|line| line.split_once(": ").unwrap_or((line, "")))
        .collect()
}

fn is_listed(section: &str, name: &str) -> bool {
    listed(section).iter().any(|(listed, _)| *listed == name)
}

/// Runs the build command, and returns the test programs that it has built.
pub(crate) fn tests_of(build: &str) -> Result<Vec<Test>> {
    let output = Command::new("cargo")
        .args(words(build))
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "cargo {build}: {}", output.status);
    let said = String::from_utf8(output.stdout)?;
    Ok(said.lines().filter_map(test_of).collect())
}

/// Parses a JSON message of cargo. Returns the test program that the message describes, or `None`
/// if the message is about another program.
fn test_of(message: &str) -> Option<Test> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["target"]["kind"][0] == "test";
    let program = message["executable"].as_str().filter(|_| is_test)?;
    Some(Test {
        is_of_device: message["manifest_path"]
            .as_str()?
            .ends_with("/device/Cargo.toml"),
        name: message["target"]["name"].as_str()?.to_owned(),
        program: program.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_programs_are_read_whole() {
        let sections = [
            "anywhere",
            "only in the lab",
            "short on iWARP",
            "not on iWARP",
        ];
        assert_eq!(
            sections.map(|section| listed(section).len()),
            [12, 1, 6, 13]
        );
        assert!(
            listed("not on iWARP")
                .iter()
                .all(|(_, reason)| !reason.is_empty())
        );
        let [(test, reason)] = listed("single tests not on iWARP")[..] else {
            panic!("a list is missing")
        };
        assert!(test.ends_with("in_one_message") && reason.starts_with("the device"));
    }

    #[test]
    fn test_programs_are_distinct_from_helpers() {
        let message = |kind: &str, program: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/x/device/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"broker","test":true}},
                "profile":{{"opt_level":"0","test":true}},"features":["tokio"],
                "filenames":["/x/broker"],"executable":{program},"fresh":true}}"#
            )
        };
        let test = test_of(&message("test", "\"/x/deps/broker-1a\"")).unwrap();
        assert_eq!(test.program, Path::new("/x/deps/broker-1a"));
        assert_eq!(test.name, "broker");
        assert!(test.is_of_device);
        assert!(test_of(&message("bin", "\"/x/broker\"")).is_none());
        assert!(test_of(&message("test", "null")).is_none());
        assert!(test_of(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
