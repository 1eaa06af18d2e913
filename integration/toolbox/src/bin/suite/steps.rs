use std::{
    collections::{BTreeMap, VecDeque},
    env,
    io::{BufRead, BufReader, pipe},
    iter,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use anyhow::{Context, Error, Result, bail, ensure};
use toolbox::{LAB_FAILED, LAB_STOPPED, NO_LAB, clock_millis, lock, tests_of, words};

/// The environment variable with the start time of the command, in seconds since 1970.
/// `integration/test` sets the variable before it builds this program, so that the printed times
/// include the build.
const BEGAN: &str = "TEST_BEGAN";

/// The exit status of timeout(1) after the time limit.
const TIMED_OUT: i32 = 124;

/// Runs steps. Prints the name of each step, with the time since the start in seconds.
pub(crate) struct Steps {
    /// The start time, in seconds since 1970.
    began: u64,
    /// The number of boots that were repeated because a guest stopped responding.
    repeated: AtomicU32,
}

/// A command, and its description for the output.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) what: String,
    /// Cargo's arguments for building test programs. If they are present, the step builds the
    /// programs, and runs `line` once per program, with the program's path in place of the word
    /// `TEST`. If `None`, the step runs `line` once.
    pub(crate) build: Option<String>,
    pub(crate) line: Vec<String>,
}

/// A sequence of steps. Tracks in different lanes run concurrently: see
/// [`Steps::run_concurrently`].
#[derive(Clone)]
pub(crate) struct Track {
    /// The prefix of each output line.
    pub(crate) name: &'static str,
    /// Whether the track runs only if `--all` is set or its name is selected.
    pub(crate) is_long: bool,
    pub(crate) steps: Vec<Step>,
}

impl Track {
    pub(crate) fn new(name: &'static str, steps: Vec<Step>) -> Self {
        Self {
            name,
            is_long: false,
            steps,
        }
    }
}

impl Step {
    pub(crate) fn new(what: impl Into<String>, line: Vec<String>) -> Self {
        let (what, build) = (what.into(), None);
        Self { what, build, line }
    }
}

/// Returns whether an output line reports a failure of a test or of a tool.
fn reports_a_failure(line: &str) -> bool {
    line.contains("FAILED") || line.contains("panicked at")
}

impl Steps {
    pub(crate) fn new() -> Self {
        let inherited = env::var(BEGAN).ok().and_then(|began| began.parse().ok());
        Self {
            began: inherited.unwrap_or_else(now),
            repeated: AtomicU32::new(0),
        }
    }

    /// Prints `what` as the result of all steps, and how many boots were repeated.
    pub(crate) fn end(&self, what: &str) {
        let repeated = match self.repeated.load(Ordering::Relaxed) {
            0 => String::new(),
            1 => "; REPEATED 1 boot, whose guest stopped".to_owned(),
            count => format!("; REPEATED {count} boots, whose guests stopped"),
        };
        self.begin(&format!("{what}{repeated}"));
    }

    pub(crate) fn begin(&self, what: &str) {
        let after = now().saturating_sub(self.began);
        println!("\n=== {what} (after {after} s)");
    }

    /// Runs one step of a track.
    fn take(&self, track: &str, step: &Step) -> Result<()> {
        let run = |program: &Path| {
            let words = step.line.iter().map(|word| match &**word {
                "TEST" => program.as_os_str(),
                word => word.as_ref(),
            });
            let words: Vec<_> = words.collect();
            self.run(track, Command::new(words[0]).args(&words[1..]))
        };
        let taken = match &step.build {
            Some(build) => {
                let mut built = tests_of(&words(build))?.into_iter();
                built.try_for_each(|test| run(&test.program))
            }
            None => run(Path::new("")),
        };
        taken.with_context(|| step.what.clone())
    }

    /// Runs a command, which must exit with status 0. If a guest of the lab stops responding before
    /// the output reports a failure, runs the command once more.
    fn run(&self, track: &str, command: &mut Command) -> Result<()> {
        let (mut status, has_failed) = run_once(track, command)?;
        if status.code() == Some(LAB_STOPPED.into()) && !has_failed {
            self.repeated.fetch_add(1, Ordering::Relaxed);
            println!(
                "\n=== {track}| REPEATED: a guest stopped responding; the command runs once more"
            );
            status = run_once(track, command)?.0;
        }
        if status.code() == Some(LAB_FAILED) {
            bail!("the device tests did not run. {NO_LAB}");
        }
        ensure!(
            status.code() != Some(TIMED_OUT),
            "the step did not end within its time limit"
        );
        ensure!(status.success(), "{status}");
        Ok(())
    }

    /// Runs the tracks one after another, `count` times. Prints how often each step passed.
    pub(crate) fn run_repeatedly(&self, tracks: &[Track], count: u32) -> Result<()> {
        let mut passed = BTreeMap::new();
        for time in 1..=count {
            self.begin(&format!("{time} of {count}"));
            for (step, error) in tracks.iter().flat_map(|track| self.run_steps(track)) {
                *passed.entry(step).or_insert(0) += u32::from(error.is_none());
            }
        }
        self.end("all repetitions have ended");
        for (step, passed) in &passed {
            println!("{step}: {passed} of {count} passed");
        }
        let all_passed = passed.values().all(|passed| *passed == count);
        ensure!(all_passed, "at least one step failed at least once");
        Ok(())
    }

    /// Runs the lanes concurrently. The tracks of a lane run one after another, as do the steps of
    /// a track. A lane without remaining tracks takes tracks from another lane. Returns the errors
    /// of all steps that have failed.
    pub(crate) fn run_concurrently(&self, lanes: Vec<Vec<Track>>) -> Vec<String> {
        let count = lanes.len();
        let waiting: Vec<_> = lanes.into_iter().map(VecDeque::from).collect();
        let waiting = Mutex::new(waiting);
        let next = |lane: usize| {
            let mut waiting = lock(&waiting);
            let mut own_first = (lane..count).chain(0..lane);
            own_first.find_map(|lane| waiting[lane].pop_front())
        };
        let take_all = |lane| {
            let tracks = iter::from_fn(|| next(lane));
            let steps = tracks.flat_map(|track| self.run_steps(&track));
            let errors = steps.filter_map(|(_, error)| error);
            errors.map(|error| format!("{error:#}")).collect::<Vec<_>>()
        };
        let take_all = &take_all;
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..count)
                .map(|lane| scope.spawn(move || take_all(lane)))
                .collect();
            let ended = lanes.into_iter().map(|lane| lane.join());
            ended
                .flat_map(|lane| lane.expect("a lane must not panic"))
                .collect()
        })
    }

    /// Runs all steps of a track, even if one fails. Returns each step with its error, if any.
    fn run_steps(&self, track: &Track) -> Vec<(String, Option<Error>)> {
        let name = track.name;
        let take = |step: &Step| {
            let what = format!("{name}| {}", step.what);
            self.begin(&what);
            let error = self.take(name, step).err();
            if let Some(error) = &error {
                self.begin(&format!("{name}| FAILED: {error:#}"));
            }
            (what, error)
        };
        let taken = track.steps.iter().map(take).collect();
        self.begin(&format!("{name}| done"));
        taken
    }
}

/// Runs a command, and prefixes each output line with the track's name. Returns the exit status,
/// and whether a line reported a failure.
fn run_once(track: &str, command: &mut Command) -> Result<(ExitStatus, bool)> {
    let (lines, output) = pipe()?;
    command
        .env("LAB_RESULTS_BASE", results_of(track)?)
        .stdout(output.try_clone()?)
        .stderr(output);
    let line = format!("{command:?}");
    let child = command.spawn();
    let mut child = child.with_context(|| format!("cannot run {line}"))?;
    // Close this process's copies of the pipe's write end, which `command` holds. With a copy open,
    // the reader below would still wait after the child has exited.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut has_failed = false;
    for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        has_failed |= reports_a_failure(&line);
        println!("{track}| {line}");
    }
    Ok((child.wait()?, has_failed))
}

/// Returns the current time in seconds since 1970.
fn now() -> u64 {
    clock_millis() / 1000
}

/// Returns the folder for the results of a track.
fn results_of(track: &str) -> Result<PathBuf> {
    let program = env::current_exe()?;
    let target = program
        .ancestors()
        .nth(2)
        .context("this program is not in a target directory of cargo")?;
    Ok(target.join("lab").join(format!("results-{track}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script as the only step of a track. Returns whether the step passed, and how
    /// often it was repeated.
    fn run(script: &str) -> (bool, u32) {
        let steps = Steps::new();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let passed = steps.run("test", &mut command).is_ok();
        (passed, steps.repeated.into_inner())
    }

    #[test]
    fn a_boot_whose_guest_stopped_is_repeated_once() {
        assert_eq!(run("exit 123"), (false, 1));
        let file = env::temp_dir().join(format!("suite-{}", std::process::id()));
        let name = file.display();
        let once = format!("[ -e {name} ] && exit 0; touch {name}; exit 123");
        let outcome = run(&once);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(outcome, (true, 1));
    }

    #[test]
    fn a_failure_is_never_repeated() {
        assert_eq!(run("exit 1"), (false, 0));
        assert_eq!(run("echo 'test some ... FAILED'; exit 123"), (false, 0));
    }
}
