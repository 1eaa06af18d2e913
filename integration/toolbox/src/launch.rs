use std::{
    env,
    io::{BufRead, BufReader, Write, stdout},
    os::unix::process::CommandExt,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Error, Result};
use clap::ValueEnum;

use crate::words;

/// The exit status of `integration/lab exec` if the lab itself fails. If the command fails, the
/// exit status is that of the command.
pub const LAB_FAILED: i32 = 125;

/// The exit status of `integration/lab exec` if a guest has stopped responding. The result of the
/// command is then unknown.
pub const LAB_STOPPED: u8 = 123;

/// The advice that is printed if the lab has failed.
pub const NO_LAB: &str = "There is no RDMA device, and the lab failed: see above. To set up \
    the lab again: rm -r target/lab, then integration/lab setup";

/// The driver of the RDMA devices in the lab's virtual machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LabDevice {
    /// Software RoCE
    #[default]
    Rxe,
    /// Software iWARP
    Siw,
}

impl LabDevice {
    /// Returns the option of `integration/lab exec` that selects this driver.
    pub fn option(self) -> &'static str {
        match self {
            Self::Rxe => "",
            Self::Siw => "--device siw",
        }
    }
}

/// Builds and runs an `integration/lab exec` command that starts this program again, on the hosts
/// of the lab. The working directory must be the checkout. `integration/tool` changes to the
/// checkout before it starts this program.
#[derive(Debug)]
#[must_use]
pub struct Launch {
    options: Vec<String>,
    arguments: Vec<String>,
}

impl Launch {
    /// Creates a launch. The program on the hosts receives the arguments of this process. `options`
    /// contains options for `integration/lab exec`, which kills the program after `limit`. The lab
    /// measures `limit` with this machine's clock, because the clock of an emulated guest can
    /// differ from real time.
    pub fn new(options: &str, limit: Duration) -> Self {
        Self {
            options: words(&format!("{options} --timeout {}", limit.as_secs())),
            arguments: env::args().skip(1).collect(),
        }
    }

    /// Makes the program run on this machine, and not in guests, if [`native_is_possible`] returns
    /// true.
    ///
    /// # Errors
    ///
    /// If `integration/lab probe` cannot be run.
    pub fn native_where_possible(mut self) -> Result<Self> {
        if native_is_possible()? {
            self.options.push("--native".to_owned());
        }
        Ok(self)
    }

    /// Adds an argument to the command line of the program on the hosts.
    pub fn argument(mut self, argument: String) -> Self {
        self.arguments.push(argument);
        self
    }

    /// Replaces the arguments of the program on the hosts.
    pub fn arguments(self, arguments: Vec<String>) -> Self {
        Self { arguments, ..self }
    }

    fn command(&self) -> Result<Command> {
        let mut lab = Command::new("integration/lab");
        lab.arg("exec").args(&self.options).arg("--");
        lab.arg(env::current_exe()?).args(&self.arguments);
        Ok(lab)
    }

    /// Replaces this process with `integration/lab exec`. Returns only if the exec fails.
    pub fn exec(self) -> Error {
        match self.command() {
            Ok(mut command) => Error::new(command.exec()).context("cannot run integration/lab"),
            Err(error) => error,
        }
    }

    /// Runs `integration/lab exec` and waits until it ends. Prints the program's output. If the lab
    /// has two hosts, the lab puts the host's name before each line. This function removes the name
    /// of host b, because the program on host b prints the results.
    ///
    /// # Errors
    ///
    /// If the lab cannot be started, or if its output cannot be read or printed.
    pub fn run_without_names(self) -> Result<ExitCode> {
        let mut lab = self
            .command()?
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run integration/lab")?;
        let printed = lab.stdout.take().context("the lab has no stdout")?;
        for line in BufReader::new(printed).lines() {
            let line = line?;
            let line = line.strip_prefix("b|").unwrap_or(&line);
            let line = line.strip_prefix(' ').unwrap_or(line);
            writeln!(stdout(), "{line}")?;
        }
        let status = lab.wait()?.code().unwrap_or(1);
        if status == LAB_FAILED {
            eprintln!("{NO_LAB}");
        }
        Ok(u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from))
    }
}

/// Returns true if programs can run on this machine without a guest: an RDMA device is active, or
/// this process can create one with the driver rdma_rxe.
///
/// # Errors
///
/// If `integration/lab probe` cannot be run.
pub fn native_is_possible() -> Result<bool> {
    let probe = Command::new("integration/lab")
        .arg("probe")
        .stderr(Stdio::null())
        .output()
        .context("cannot run integration/lab")?;
    Ok(probe.stdout.starts_with(b"native"))
}
