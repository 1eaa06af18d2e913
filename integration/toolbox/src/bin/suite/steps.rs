use std::{
    env,
    io::{BufRead, BufReader, pipe},
    process::Command,
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use toolbox::{LAB_FAILED, NO_LAB, words};

/// Says what is done, and since when.
pub(crate) struct Steps(Instant);

/// A command, and what it is for.
pub(crate) struct Step {
    what: String,
    command: Command,
}

/// Steps that others are taken beside.
pub(crate) struct Track {
    /// Stands before each line of theirs.
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
}

impl Step {
    pub(crate) fn new(what: impl Into<String>, line: &str) -> Self {
        let what = what.into();
        let line = words(line);
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]);
        Self { what, command }
    }

    /// Runs a command where there is a device.
    pub(crate) fn in_lab(
        what: impl Into<String>,
        options: &str,
        native: bool,
        line: &[String],
    ) -> Self {
        let mut lab = Self::new(what, &format!("integration/lab exec {options}"));
        if native {
            lab.command.arg("--native");
        }
        lab.command.arg("--").args(line);
        lab
    }

    fn run(mut self) -> Result<()> {
        let status = self
            .command
            .status()
            .with_context(|| format!("cannot run {:?}", self.command))?;
        if status.code() == Some(LAB_FAILED) {
            bail!("the device tests did not run. {NO_LAB}");
        }
        ensure!(status.success(), "{}: {status}", self.what);
        Ok(())
    }

    /// As [`run`](Self::run), with `name` before each line. What the command keeps has a place of
    /// its own.
    fn run_beside(mut self, name: &str) -> Result<()> {
        let (lines, output) = pipe()?;
        let program = env::current_exe()?;
        let target = program
            .ancestors()
            .nth(2)
            .context("this is built by cargo")?;
        let results = target.join("lab").join(format!("results-{name}"));
        self.command
            .env("LAB_RESULTS_BASE", results)
            .stdout(output.try_clone()?)
            .stderr(output);
        thread::scope(|scope| {
            scope.spawn(|| {
                for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
                    println!("{name}| {}", String::from_utf8_lossy(&line));
                }
            });
            // The other end of the pipe goes with the command.
            self.run()
        })
    }
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn begin(&self, what: &str) {
        println!("\n=== {what} (after {} s)", self.0.elapsed().as_secs());
    }

    pub(crate) fn run(&self, what: &str, line: &str) -> Result<()> {
        self.take(Step::new(what, line))
    }

    pub(crate) fn take(&self, step: Step) -> Result<()> {
        self.begin(&step.what);
        step.run()
    }

    /// Takes the steps of each track one after the other, and the tracks at the same time: mostly
    /// one waits while another one works. Fails if one does, when all have ended.
    pub(crate) fn take_tracks<const N: usize>(&self, tracks: [Track; N]) -> Result<()> {
        thread::scope(|scope| {
            let taken = tracks.map(|track| scope.spawn(|| self.take_one_by_one(track)));
            let results = taken.map(|track| track.join().expect("a track does not panic"));
            let failed: Vec<_> = results
                .into_iter()
                .filter_map(|result| result.err().map(|error| format!("{error:#}")))
                .collect();
            ensure!(failed.is_empty(), "{}", failed.join("; "));
            Ok(())
        })
    }

    fn take_one_by_one(&self, Track { name, steps }: Track) -> Result<()> {
        for step in steps {
            self.begin(&format!("{name}| {}", step.what));
            step.run_beside(name)?;
        }
        self.begin(&format!("{name}| done"));
        Ok(())
    }
}
