//! The test programs, and the devices on which they run.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use toolbox::{TestProgram, sections};

use crate::only::Only;

/// The time limit of the tests that need no device. The tests take a few minutes. Without the
/// limit, a test that never ends would keep the suite running. The tests that need a device have
/// no such limit here, because the lab limits its own commands.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Returns the lines of a section of `programs.txt`: each name, and the rest of its line.
pub(crate) fn listed(title: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut all = sections(include_str!("programs.txt"));
    let section = all.find(|(found, _)| *found == title);
    let (_, lines) = section.expect("programs.txt must contain the section");
    let lines = lines.into_iter();
    lines.map(|line| line.split_once(' ').unwrap_or((line, "")))
}

fn is_listed(test: &TestProgram, title: &str) -> bool {
    listed(title).any(|(name, _)| name == test.name)
}

/// Returns the expected duration of a program in seconds.
pub(crate) fn seconds(test: &TestProgram) -> u32 {
    let known = listed("seconds").find(|(name, _)| *name == test.name);
    known.map_or(5, |(_, seconds)| {
        seconds.parse().expect("the duration must be a number")
    })
}

/// Returns the cargo command for the tests that need no device, or `None` if no test is selected.
/// The command names the same packages as the build. With fewer packages, cargo would select fewer
/// features, and would build the tests again.
pub(crate) fn anywhere(built: &[TestProgram], track: &str, only: &Only) -> Result<Option<String>> {
    let mut line = format!(
        "timeout {} cargo test {} --locked --no-fail-fast",
        TIME_LIMIT.as_secs(),
        only.packages()
    );
    if only.selects(track) {
        line += " --lib --bins";
    }
    let (of_device, others): (Vec<_>, Vec<_>) = built.iter().partition(|test| test.is_of_device);
    let any = others.into_iter();
    let selected = only.of(track, any.filter(|test| !is_listed(test, "only in lab")));
    for test in &selected {
        ensure!(
            of_device.iter().all(|other| other.name != test.name),
            "two test programs are named {}: one needs a device, and the other does not",
            test.name
        );
        line += &format!(" --test {}", test.name);
    }
    Ok((!selected.is_empty()).then_some(line))
}

/// The test programs for one host with a device, and those for two such hosts. The programs that
/// need no device are among those for one host.
#[derive(Default)]
pub(crate) struct DeviceTests {
    pub(crate) one: Vec<TestProgram>,
    pub(crate) two: Vec<TestProgram>,
}

impl DeviceTests {
    pub(crate) fn new(mut built: Vec<TestProgram>) -> Result<Self> {
        // Sort the programs, because cargo reports them in the order in which their builds finish,
        // which varies.
        built.sort_by(|a, b| a.name.cmp(&b.name));
        built.retain(|test| {
            let mut without_device = ["anywhere", "only in lab"].into_iter();
            test.is_of_device || without_device.any(|title| is_listed(test, title))
        });
        let is_of_two = |test: &TestProgram| test.is_of_device && test.name.ends_with("two_hosts");
        let (two, one): (Vec<_>, Vec<_>) = built.into_iter().partition(is_of_two);
        ensure!(
            !one.is_empty() && !two.is_empty(),
            "cargo built no device tests for one host, or none for two hosts"
        );
        Ok(Self { one, two })
    }

    /// Returns the single-host programs to run on software iWARP. If `all` is not set, returns only
    /// a few of them.
    pub(crate) fn on_iwarp(&self, all: bool) -> impl Iterator<Item = &TestProgram> {
        self.one.iter().filter(move |test| {
            !is_listed(test, "not on iwarp") && (all || is_listed(test, "short on iwarp"))
        })
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

/// Returns a device test program with the name `name` and an empty path.
#[cfg(test)]
pub(crate) fn named(name: &str) -> TestProgram {
    TestProgram {
        is_of_device: true,
        name: name.to_owned(),
        program: std::path::PathBuf::new(),
    }
}
