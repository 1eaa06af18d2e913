//! The test programs, and the devices on which they run.

use std::path::Path;
#[cfg(test)]
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use toolbox::{TestProgram, sections};

use crate::only::Only;

/// Returns the cargo command for the tests that need no device, or `None` if no test is selected.
/// The command names the same packages as the build. With fewer packages, cargo would select fewer
/// features, and would build the tests again.
pub(crate) fn anywhere(built: &[TestProgram], track: &str, only: &Only) -> Result<Option<String>> {
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
        let same = |other: &&TestProgram| other.is_of_device && other.name == test.name;
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

/// Returns a device test program with the name `name` and an empty path.
#[cfg(test)]
pub(crate) fn named(name: &str) -> TestProgram {
    TestProgram {
        is_of_device: true,
        name: name.to_owned(),
        program: PathBuf::new(),
    }
}

/// The programs with device tests.
#[derive(Default)]
pub(crate) struct DeviceTests {
    pub(crate) one: Vec<TestProgram>,
    pub(crate) two: Vec<TestProgram>,
}

impl DeviceTests {
    pub(crate) fn new(mut built: Vec<TestProgram>) -> Result<Self> {
        // Sort the programs: cargo reports them in the order in which their builds have finished.
        built.sort_by(|a, b| a.name.cmp(&b.name));
        built.retain(|test| {
            let lists = ["anywhere", "only in the lab"];
            test.is_of_device || lists.iter().any(|list| is_listed(list, &test.name))
        });
        let is_of_two = |test: &TestProgram| test.is_of_device && test.name.ends_with("two_hosts");
        let (two, one): (Vec<_>, Vec<_>) = built.into_iter().partition(is_of_two);
        ensure!(
            !one.is_empty() && !two.is_empty(),
            "cargo built no device tests"
        );
        Ok(Self { one, two })
    }

    /// Returns the single-host programs that also run on software iWARP: all of them if `all` is
    /// set, and otherwise only the short ones.
    pub(crate) fn on_iwarp(&self, all: bool) -> Vec<&TestProgram> {
        let applies = |test: &&TestProgram| {
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
}
