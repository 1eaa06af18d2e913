//! Runs the tests and records their outcomes.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use toolbox::Process;

/// The time limit for one test. `Deadline` extends it on a slow machine.
const LIMIT: Duration = Duration::from_secs(20);

/// The types that the program of a suite uses, and their transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Carrier {
    /// The types for which the suite was written: sockets over TCP.
    Sockets,
    /// rdmsg's types over TCP.
    Tcp,
    /// rdmsg's types over RDMA.
    Rdma,
}

/// The tests of a suite, and their outcomes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) suite: String,
    pub(crate) version: String,
    /// The paths of the two programs: first the one with sockets, then the one with rdmsg.
    pub(crate) programs: [String; 2],
    pub(crate) tests: Vec<Test>,
}

/// A test, with its outcomes so far.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Test {
    pub(crate) name: String,
    /// Whether the program with rdmsg contains the test. If false, a substitution has removed the
    /// test.
    pub(crate) compiles: bool,
    /// The outcome for each carrier: the reason why the test failed, or `None` if it passed.
    pub(crate) outcomes: BTreeMap<Carrier, Option<String>>,
}

/// The result of comparing an outcome with the known differences.
#[derive(Debug)]
pub(crate) enum Verdict {
    Passed,
    Documented(&'static str),
    Unexpected(String),
}

impl Record {
    /// Runs each test in its own process, one after another, and records the outcomes.
    pub(crate) fn run(&mut self, carrier: Carrier) -> Result<()> {
        let [sockets, rdmsg] = &self.programs;
        let count = self.tests.len();
        for (at, test) in (1..).zip(&mut self.tests) {
            let start = Instant::now();
            let outcome = match carrier {
                Carrier::Sockets => run(sockets, &test.name, carrier)?,
                _ if !test.compiles => Some("does not compile".to_owned()),
                Carrier::Tcp | Carrier::Rdma => run(rdmsg, &test.name, carrier)?,
            };
            let verdict = match Verdict::new(&self.suite, &test.name, carrier, &outcome) {
                Verdict::Passed => "ok".to_owned(),
                Verdict::Documented(_) => "differs, as documented".to_owned(),
                Verdict::Unexpected(found) => format!("FAILED: {found}"),
            };
            let (suite, name, seconds) = (&self.suite, &test.name, start.elapsed().as_secs_f64());
            println!("others: {suite} {carrier} {at}/{count} {name}: {verdict}, {seconds:.1} s");
            test.outcomes.insert(carrier, outcome);
        }
        Ok(())
    }

    /// Returns the number of tests that passed with `carrier`, or a dash if no test has run with
    /// this carrier.
    pub(crate) fn passed(&self, carrier: Carrier) -> String {
        let tests = self.tests.iter();
        let outcomes: Vec<_> = tests.filter_map(|it| it.outcomes.get(&carrier)).collect();
        let passed = outcomes.iter().filter(|outcome| outcome.is_none());
        match outcomes.len() {
            0 => "-".to_owned(),
            _ => passed.count().to_string(),
        }
    }
}

impl Verdict {
    pub(crate) fn new(suite: &str, test: &str, carrier: Carrier, outcome: &Option<String>) -> Self {
        match (outcome, difference(suite, test, carrier)) {
            (None, None | Some((_, false))) => Self::Passed,
            (Some(_), Some((reason, _))) => Self::Documented(reason),
            (None, Some((_, true))) => {
                Self::Unexpected("passes, but is documented to fail".to_owned())
            }
            (Some(error), None) => Self::Unexpected(error.clone()),
        }
    }
}

impl Carrier {
    /// Returns the name of the transport, in `differences.txt` and in RDMSG_TRANSPORT.
    fn transport(self) -> &'static str {
        match self {
            Self::Sockets | Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

/// Looks up a test in `differences.txt`. Returns the documented reason for a failure, and whether
/// the test always fails (true) or only sometimes (false). Returns `None` if the test must pass.
fn difference(suite: &str, test: &str, carrier: Carrier) -> Option<(&'static str, bool)> {
    let mut lines = include_str!("../differences.txt").lines();
    lines.find_map(|line| {
        let (subject, reason) = line.split_once(": ")?;
        let always = !subject.ends_with('?');
        let words: Vec<_> = subject.trim_end_matches('?').split(' ').collect();
        let fits = |transport| words == [suite, test, transport];
        let applies = carrier != Carrier::Sockets && (fits("both") || fits(carrier.transport()));
        applies.then_some((reason, always))
    })
}

/// Returns the names of all tests in a program.
pub(crate) fn list(program: &str) -> Result<Vec<String>> {
    let ended = Process::start(&[program, "--list"])?.finish(LIMIT)?;
    ensure!(ended.succeeded(), "{program} --list: {ended}");
    let lines = ended.output.lines();
    let names = lines.filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// Runs a test. Returns the reason for the failure, or `None` if the test passes.
fn run(program: &str, test: &str, carrier: Carrier) -> Result<Option<String>> {
    let transport = format!("RDMSG_TRANSPORT={}", carrier.transport());
    let environment = ["env", "RUST_BACKTRACE=0", &transport];
    let argv = [&environment[..], &[program, "--exact", test]].concat();
    let ended = Process::start(&argv)?.finish(LIMIT)?;
    Ok(match ended.status {
        Some(0) if ended.output.contains("1 passed") => None,
        Some(_) => Some(reason(&ended.output)),
        None => Some(format!("hangs, and was killed; {}", reason(&ended.output))),
    })
}

/// Returns the message of the first panic as one line.
fn reason(output: &str) -> String {
    let lines = output.lines().map(str::trim);
    let panic = lines.skip_while(|line| !line.contains("panicked at "));
    let message = panic.skip(1).take_while(|line| !line.starts_with("note: "));
    match message.collect::<Vec<_>>()[..] {
        [] => "no panic message".to_owned(),
        ref message => message.join(" "),
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sockets => "with sockets",
            Self::Tcp => "over TCP",
            Self::Rdma => "over RDMA",
        })
    }
}
