use std::{
    collections::VecDeque,
    env,
    io::{BufRead, BufReader, pipe},
    path::PathBuf,
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use toolbox::{LAB_FAILED, NO_LAB, clock_millis, words};

/// The variable with the time at which the command was typed, in seconds since 1970: what it takes
/// to build all of it counts.
const BEGAN: &str = "TEST_BEGAN";

/// Says what is done, and after how long.
pub(crate) struct Steps {
    /// Seconds since 1970.
    began: u64,
}

/// Something to do, and what it is for.
pub(crate) struct Step {
    what: String,
    action: Action,
}

type Action = Box<dyn FnOnce(&Place) -> Result<()> + Send>;

/// Steps that are taken one after the other, while those of other tracks are.
pub(crate) struct Track {
    /// Stands before each line of theirs.
    name: &'static str,
    steps: Vec<Step>,
}

/// Where commands print, and keep what they keep.
pub(crate) enum Place {
    Here,
    /// With this name before each line, and what is kept in a folder of this name.
    Track(&'static str),
}

impl Track {
    pub(crate) fn new(name: &'static str, steps: Vec<Step>) -> Self {
        Self { name, steps }
    }
}

impl Step {
    pub(crate) fn new(what: impl Into<String>, line: &str) -> Self {
        let command = command(&words(line));
        Self::of(what, |place| place.run(command))
    }

    pub(crate) fn of(
        what: impl Into<String>,
        action: impl FnOnce(&Place) -> Result<()> + Send + 'static,
    ) -> Self {
        Self {
            what: what.into(),
            action: Box::new(action),
        }
    }

    fn take(self, place: &Place) -> Result<()> {
        (self.action)(place).with_context(|| self.what)
    }
}

impl Place {
    /// Runs a command to its end, which is to be a good one.
    pub(crate) fn run(&self, mut command: Command) -> Result<()> {
        let line = format!("{command:?}");
        let cannot = || format!("cannot run {line}");
        let status = match self {
            Self::Here => command.status().with_context(cannot)?,
            Self::Track(name) => {
                let (lines, output) = pipe()?;
                command
                    .env("LAB_RESULTS_BASE", results_of(name)?)
                    .stdout(output.try_clone()?)
                    .stderr(output);
                let mut child = command.spawn().with_context(cannot)?;
                // It has the other end of the pipe, which is to go with the child.
                drop(command);
                for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
                    println!("{name}| {}", String::from_utf8_lossy(&line));
                }
                child.wait()?
            }
        };
        if status.code() == Some(LAB_FAILED) {
            bail!("the device tests did not run. {NO_LAB}");
        }
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

impl Steps {
    pub(crate) fn new() -> Self {
        let told = env::var(BEGAN).ok().and_then(|began| began.parse().ok());
        Self {
            began: told.unwrap_or_else(now),
        }
    }

    pub(crate) fn begin(&self, what: &str) {
        let after = now().saturating_sub(self.began);
        println!("\n=== {what} (after {after} s)");
    }

    pub(crate) fn run(&self, what: &str, line: &str) -> Result<()> {
        self.begin(what);
        Step::new(what, line).take(&Place::Here)
    }

    /// Takes what is in each lane, side by side with the others: track by track, and of a track
    /// step by step until one fails. A lane that has no more takes from another one. When all have
    /// ended it fails if one has, and tells all failures.
    pub(crate) fn take_side_by_side(&self, lanes: Vec<Vec<Track>>) -> Result<()> {
        let count = lanes.len();
        let waiting: Vec<_> = lanes.into_iter().map(VecDeque::from).collect();
        let waiting = Mutex::new(waiting);
        let next = |lane: usize| {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let mut own_first = (lane..count).chain(0..lane);
            own_first.find_map(|lane| waiting[lane].pop_front())
        };
        let take_all = |lane| {
            let mut failures = Vec::new();
            while let Some(track) = next(lane) {
                failures.extend(self.take_one_by_one(track).err());
            }
            failures
        };
        let take_all = &take_all;
        let failures: Vec<_> = thread::scope(|scope| {
            let lanes: Vec<_> = (0..count)
                .map(|lane| scope.spawn(move || take_all(lane)))
                .collect();
            let ended = lanes.into_iter().map(|lane| lane.join());
            ended
                .flat_map(|lane| lane.expect("it does not panic"))
                .collect()
        });
        let told: Vec<_> = failures.iter().map(|error| format!("{error:#}")).collect();
        ensure!(told.is_empty(), "{}", told.join("; "));
        Ok(())
    }

    fn take_one_by_one(&self, Track { name, steps }: Track) -> Result<()> {
        let place = Place::Track(name);
        for step in steps {
            self.begin(&format!("{name}| {}", step.what));
            if let Err(error) = step.take(&place) {
                self.begin(&format!("{name}| FAILED: {error:#}"));
                return Err(error);
            }
        }
        self.begin(&format!("{name}| done"));
        Ok(())
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    clock_millis() / 1000
}

fn command(line: &[String]) -> Command {
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]);
    command
}

/// The folder of what a track keeps.
fn results_of(track: &str) -> Result<PathBuf> {
    let program = env::current_exe()?;
    let target = program
        .ancestors()
        .nth(2)
        .context("this is built by cargo")?;
    Ok(target.join("lab").join(format!("results-{track}")))
}
