//! Runs the tests and records their outcomes.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
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
    pub(crate) programs: [PathBuf; 2],
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
        for (at, test) in self.tests.iter_mut().enumerate() {
            let start = Instant::now();
            let outcome = match (carrier, test.compiles) {
                (Carrier::Sockets, _) => run(sockets, &test.name, "tcp")?,
                (_, false) => Some("does not compile".to_owned()),
                (Carrier::Tcp, true) => run(rdmsg, &test.name, "tcp")?,
                (Carrier::Rdma, true) => run(rdmsg, &test.name, "rdma")?,
            };
            let verdict = match Verdict::new(&self.suite, &test.name, carrier, &outcome) {
                Verdict::Passed => "ok".to_owned(),
                Verdict::Documented(_) => "differs, as documented".to_owned(),
                Verdict::Unexpected(found) => format!("FAILED: {found}"),
            };
            let (suite, name, seconds) = (&self.suite, &test.name, start.elapsed().as_secs_f64());
            let at = at + 1;
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

/// Looks up a test in `differences.txt`. Returns the documented reason for a failure, and whether
/// the test always fails (true) or only sometimes (false). Returns `None` if the test must pass.
fn difference(suite: &str, test: &str, carrier: Carrier) -> Option<(&'static str, bool)> {
    let carrier = match carrier {
        Carrier::Sockets => return None,
        Carrier::Tcp => "tcp",
        Carrier::Rdma => "rdma",
    };
    let mut lines = include_str!("../differences.txt").lines();
    lines.find_map(|line| {
        let (subject, reason) = line.split_once(": ")?;
        let always = !subject.ends_with('?');
        let words: Vec<_> = subject.trim_end_matches('?').split(' ').collect();
        let fits = |carrier: &&str| words == [suite, test, carrier];
        ["both", carrier]
            .iter()
            .any(fits)
            .then_some((reason, always))
    })
}

/// Returns the names of all tests in a program.
pub(crate) fn list(program: &Path) -> Result<Vec<String>> {
    let ended = Process::start(&[text(program)?, "--list"])?.finish(LIMIT)?;
    ensure!(ended.succeeded(), "{} --list: {ended}", program.display());
    let names = ended
        .output
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// Runs a test. Returns the reason for the failure, or `None` if the test passes.
fn run(program: &Path, test: &str, transport: &str) -> Result<Option<String>> {
    let transport = format!("RDMSG_TRANSPORT={transport}");
    let argv = [
        "env",
        "RUST_BACKTRACE=0",
        &transport,
        text(program)?,
        "--exact",
        test,
    ];
    let mut process = Process::start(&argv)?;
    Ok(match process.end(LIMIT)? {
        Some(ended) if ended.succeeded() && ended.output.contains("1 passed") => None,
        Some(ended) => Some(reason(&ended.output)),
        None => Some(format!(
            "hangs, and was killed; {}",
            reason(&process.kill()?.output)
        )),
    })
}

/// Returns the message of the first panic as one line.
fn reason(output: &str) -> String {
    let mut lines = output
        .lines()
        .skip_while(|line| !line.contains("panicked at "));
    let message = lines
        .by_ref()
        .skip(1)
        .take_while(|line| !line.starts_with("note: "));
    let message: Vec<_> = message.map(str::trim).collect();
    if message.is_empty() {
        "no panic message".to_owned()
    } else {
        message.join(" ")
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the target path is not UTF-8")
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
