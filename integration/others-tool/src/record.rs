//! Runs the tests, and keeps their outcomes.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use toolbox::Process;

use crate::differences;

/// The longest that a test may take on an idle machine.
const LIMIT: Duration = Duration::from_secs(20);

/// The types in a suite's program, and what carries their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Carrier {
    /// The types for which the suite was written.
    Sockets,
    /// rdmsg's types over TCP.
    Tcp,
    /// rdmsg's types over RDMA.
    Rdma,
}

/// The outcome of a test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
}

/// A suite's tests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) suite: String,
    pub(crate) version: String,
    /// The programs with sockets and with rdmsg.
    programs: [PathBuf; 2],
    pub(crate) tests: Vec<Test>,
}

/// A test, and its outcomes so far.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Test {
    pub(crate) name: String,
    /// The compiler's error, if it does not compile with rdmsg.
    error: Option<String>,
    pub(crate) outcomes: BTreeMap<Carrier, Outcome>,
}

impl Record {
    /// Lists the tests. `error_of` returns why a test is not in the program with rdmsg.
    pub(crate) fn new(
        suite: &str,
        version: &str,
        programs: [PathBuf; 2],
        error_of: impl Fn(&str) -> Result<String>,
    ) -> Result<Self> {
        let [names, with_rdmsg] = [list(&programs[0])?, list(&programs[1])?];
        ensure!(!names.is_empty(), "the suite {suite} has no tests");
        let tests = names.into_iter().map(|name| {
            let is_there = with_rdmsg.contains(&name);
            Ok(Test {
                error: (!is_there).then(|| error_of(&name)).transpose()?,
                name,
                outcomes: BTreeMap::new(),
            })
        });
        Ok(Self {
            suite: suite.to_owned(),
            version: version.to_owned(),
            programs,
            tests: tests.collect::<Result<_>>()?,
        })
    }

    /// Runs each test in a process of its own, one after the other.
    pub(crate) fn run(&mut self, carrier: Carrier) -> Result<()> {
        let [sockets, rdmsg] = &self.programs;
        let program = if carrier == Carrier::Sockets {
            sockets
        } else {
            rdmsg
        };
        let count = self.tests.len();
        for (at, test) in self.tests.iter_mut().enumerate() {
            let start = Instant::now();
            let outcome = match &test.error {
                Some(error) if carrier != Carrier::Sockets => Outcome::Failed(error.clone()),
                _ => run(program, &test.name, carrier)?,
            };
            let documented = differences::find(&self.suite, &test.name, carrier);
            let verdict = match (&outcome, documented) {
                (Outcome::Passed, None) => "ok".to_owned(),
                (Outcome::Failed(_), Some(_)) => "differs, as documented".to_owned(),
                (Outcome::Passed, Some(_)) => {
                    "FAILED: passes, but is documented to differ".to_owned()
                }
                (Outcome::Failed(error), None) => format!("FAILED: {error}"),
            };
            println!(
                "others: {} {carrier} {}/{count} {}: {verdict}, {:.1} s",
                self.suite,
                at + 1,
                test.name,
                start.elapsed().as_secs_f64()
            );
            test.outcomes.insert(carrier, outcome);
        }
        Ok(())
    }
}

fn run(program: &Path, test: &str, carrier: Carrier) -> Result<Outcome> {
    let transport = match carrier {
        // It has no effect on sockets.
        Carrier::Sockets | Carrier::Tcp => "RDMSG_TRANSPORT=tcp",
        Carrier::Rdma => "RDMSG_TRANSPORT=rdma",
    };
    let program = text(program)?;
    let mut process = Process::start(&["env", transport, program, "--exact", test])?;
    Ok(match process.end(LIMIT)? {
        Some(ended) if ended.succeeded() && ended.output.contains("1 passed") => Outcome::Passed,
        Some(ended) => Outcome::Failed(reason(&ended.output)),
        None => {
            let killed = process.kill()?;
            Outcome::Failed(format!("hangs, and was killed: {}", reason(&killed.output)))
        }
    })
}

/// Returns the message of the first panic, in one line.
fn reason(output: &str) -> String {
    let mut lines = output
        .lines()
        .skip_while(|line| !line.contains("panicked at "));
    lines.next();
    let message = lines.take_while(|line| !line.starts_with("note: ") && !line.is_empty());
    let message: Vec<_> = message.map(str::trim).collect();
    match &message[..] {
        [] => "no test panicked".to_owned(),
        message => message.join(" "),
    }
}

fn list(program: &Path) -> Result<Vec<String>> {
    let ended = Process::start(&[text(program)?, "--list"])?.finish(LIMIT)?;
    ensure!(ended.succeeded(), "{} --list: {ended}", program.display());
    let names = ended
        .output
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the target folder's path is no text")
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
