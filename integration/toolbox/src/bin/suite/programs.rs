//! The test programs, and the devices on which they run.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use toolbox::words;

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
        .filter(|test| !test.is_of_device && !ONLY_IN_LAB.contains(&&*test.name))
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
        // These programs can run over TCP, so they need no device. They also run on a host with a
        // device.
        let anywhere = [
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
        let (mut one, mut two) = (Vec::new(), Vec::new());
        // Sort the programs: cargo reports them in the order in which their builds have finished.
        built.sort_by(|a, b| a.name.cmp(&b.name));
        for test in built {
            if test.is_of_device && test.name.ends_with("two_hosts") {
                two.push(test);
            } else if test.is_of_device
                || anywhere.contains(&&*test.name)
                || ONLY_IN_LAB.contains(&&*test.name)
            {
                one.push(test);
            }
        }
        ensure!(
            !one.is_empty() && !two.is_empty(),
            "cargo built no device tests"
        );
        Ok(Self { one, two })
    }

    /// Returns the single-host programs that also run on software iWARP: all of them if `all` is
    /// set, and otherwise those in [`SHORT_ON_IWARP`].
    pub(crate) fn on_iwarp(&self, all: bool) -> Vec<&Test> {
        let applies = |test: &&Test| {
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

/// Test programs that need no device, but need permission to create network namespaces. They run in
/// the lab, because a container can lack this permission.
const ONLY_IN_LAB: [&str; 1] = ["own_network"];

/// The test programs that do not run on software iWARP, each with the reason, for instance a
/// capability that the device lacks. In other programs, a test that does not apply prints its own
/// reason.
pub(crate) const NOT_ON_IWARP: [(&str, &str); 13] = [
    ("own_network", "it needs no device"),
    (
        "waiting",
        "the device lacks a hundred connections in a process",
    ),
    (
        "verbs",
        "the device lacks queue pairs that a program connects by ibv_modify_qp(3)",
    ),
    (
        "cm",
        "the device lacks datagrams, and connect requests with the parameters of InfiniBand's",
    ),
    (
        "storms",
        "the device lacks hundreds of queue pairs in a process, and an rdma_connect(3) that does \
         not wait",
    ),
    (
        "doctor",
        "the device lacks RoCE's GIDs, UDP port and modules",
    ),
    ("services", OTHERS_CALL),
    ("bridged", OTHERS_CALL),
    ("allocations", "it counts what the library allocates"),
    ("fork", "a child leaves what it inherits alone"),
    ("task_leaks", "leaks counts the objects of the device"),
    ("tasks", "runtimes and wakers are above the device"),
    ("tcp_api", "behaviour covers streams"),
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

/// Single tests that do not run on software iWARP, each with the reason.
pub(crate) const SKIPPED_ON_IWARP: [(&str, &str); 1] = [(
    "a_gibibyte_in_one_message",
    "the device reads it in the chunks of shorter messages",
)];

const OTHERS_CALL: &str = "it calls nothing that the other programs do not call on it";

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
