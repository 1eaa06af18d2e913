//! The test programs, and the devices on which they run.

#[cfg(test)]
use std::path::PathBuf;
use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use toolbox::TestProgram;

use crate::only::Only;

/// The time limit of the tests that need no device. The tests take a few minutes. Without the
/// limit, a test that never ends would keep the suite running. The tests that need a device have
/// no such limit here, because the lab limits its own commands.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

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
    let any: Vec<_> = built
        .iter()
        .filter(|test| !test.is_of_device && !ONLY_IN_LAB.contains(&&*test.name))
        .collect();
    let selected = only.of(track, &any);
    for test in &selected {
        let same = |other: &&TestProgram| other.is_of_device && other.name == test.name;
        if built.iter().any(|other| same(&other)) {
            bail!(
                "two test programs are named {}: one needs a device, and the other does not",
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

/// The test programs for one host with a device, and those for two such hosts. The programs in
/// [`ANYWHERE`] and [`ONLY_IN_LAB`] are among those for one host.
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
            let mut without_device = ANYWHERE.iter().chain(&ONLY_IN_LAB);
            test.is_of_device || without_device.any(|name| *name == test.name)
        });
        let is_of_two = |test: &TestProgram| test.is_of_device && test.name.ends_with("two_hosts");
        let (two, one): (Vec<_>, Vec<_>) = built.into_iter().partition(is_of_two);
        ensure!(
            !one.is_empty() && !two.is_empty(),
            "cargo built no device tests for one host, or none for two hosts"
        );
        Ok(Self { one, two })
    }

    /// Returns the single-host programs to run on software iWARP. If `all` is set, these are all
    /// programs except those in [`NOT_ON_IWARP`]. If not, these are the programs in
    /// [`SHORT_ON_IWARP`].
    pub(crate) fn on_iwarp(&self, all: bool) -> Vec<&TestProgram> {
        let applies = |test: &&TestProgram| {
            NOT_ON_IWARP.iter().all(|(name, _)| *name != test.name)
                && (all || SHORT_ON_IWARP.contains(&&*test.name))
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

/// Test programs that need no device, because they can run over TCP. If a host with a device is
/// available, they run there too.
const ANYWHERE: [&str; 12] = [
    "conformance",
    "behaviour",
    "tcp_api",
    "tasks",
    "task_leaks",
    "shortage",
    "waiting",
    "logging",
    "engine_end",
    "fork",
    "privileges",
    "services",
];

/// Test programs that need no device, but need permission to create network namespaces. They run in
/// the lab, because a container can lack this permission.
const ONLY_IN_LAB: [&str; 1] = ["own_network"];

/// The test programs that do not run on software iWARP, each with the reason, for instance a
/// capability that the device lacks. All other programs run there. If one of their tests does not
/// apply, the test prints the reason.
pub(crate) const NOT_ON_IWARP: [(&str, &str); 13] = [
    ("own_network", "it needs no device"),
    (
        "waiting",
        "the device does not support a hundred connections in a process",
    ),
    (
        "verbs",
        "the device lacks queue pairs that a program connects by ibv_modify_qp(3)",
    ),
    (
        "cm",
        "the device supports neither datagrams nor InfiniBand's parameters of connect requests",
    ),
    (
        "storms",
        "the device does not support hundreds of queue pairs in a process, and rdma_connect(3) \
         blocks on it",
    ),
    (
        "doctor",
        "the device lacks RoCE's GIDs, UDP port and modules",
    ),
    ("services", OTHERS_CALL),
    ("bridged", OTHERS_CALL),
    ("allocations", "it counts what the library allocates"),
    (
        "fork",
        "a forked child does not touch inherited objects of any device",
    ),
    (
        "task_leaks",
        "the program `leaks` counts the objects of the device",
    ),
    ("tasks", "runtimes and wakers do not depend on the device"),
    (
        "tcp_api",
        "the program `behaviour` tests streams on the device",
    ),
];

/// The programs that run on software iWARP even without `--all`. These programs test messages of
/// all sizes, faults, and closing.
const SHORT_ON_IWARP: [&str; 6] = [
    "conformance",
    "devices",
    "duplex",
    "errors",
    "exits",
    "messages",
];

/// Individual tests that do not run on software iWARP, each with the reason.
pub(crate) const SKIPPED_ON_IWARP: [(&str, &str); 1] = [(
    "a_gibibyte_in_one_message",
    "the device reads the message in chunks, as it reads shorter messages",
)];

const OTHERS_CALL: &str = "the other programs make the same calls on the device";
