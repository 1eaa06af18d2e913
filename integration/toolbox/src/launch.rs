use std::{
    env,
    io::{BufRead, BufReader, Write, stdout},
    os::unix::process::CommandExt,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Error, Result};
use clap::ValueEnum;

/// The status of `integration/lab exec` when the lab failed instead of the command.
pub const LAB_FAILED: i32 = 125;

/// The status of `integration/lab exec` when a guest stopped, through no fault of the command.
pub const LAB_STOPPED: i32 = 123;

/// The advice after [`LAB_FAILED`].
pub const NO_LAB: &str = "There was neither a device nor a lab to run on, see above. To make the \
    lab anew: rm -r target/lab, then integration/lab setup";

/// The driver of the devices in the lab's virtual machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum LabDevice {
    /// Software RoCE
    #[default]
    Rxe,
    /// Software iWARP
    Siw,
}

/// Starts this program again on the hosts of the lab. It has to run in the checkout;
/// `integration/tool` ensures that.
#[derive(Debug)]
pub struct Launch {
    lab: Command,
    arguments: Vec<String>,
}

impl Launch {
    /// Runs on one host or two, for at most `limit`.
    #[must_use]
    pub fn new(hosts: u8, limit: Duration) -> Self {
        Self::on(&["--hosts", &hosts.to_string()], limit)
    }

    /// Runs on one host whose clock counts instructions, for at most `limit` by this machine's
    /// clock.
    #[must_use]
    pub fn counted(limit: Duration) -> Self {
        Self::on(&["--counted"], limit)
    }

    fn on(hosts: &[&str], limit: Duration) -> Self {
        let mut lab = Command::new("integration/lab");
        lab.arg("exec").args(hosts);
        lab.args(["--timeout", &limit.as_secs().to_string()]);
        Self {
            lab,
            arguments: Vec::new(),
        }
    }

    /// Adds an option of `integration/lab exec`.
    #[must_use]
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.lab.args([name, value]);
        self
    }

    /// Selects the driver of the devices.
    #[must_use]
    pub fn device(self, device: LabDevice) -> Self {
        match device {
            LabDevice::Rxe => self,
            LabDevice::Siw => self.option("--device", "siw"),
        }
    }

    /// Runs on this machine itself if it has RDMA.
    ///
    /// # Errors
    ///
    /// If the lab's tool fails.
    pub fn native_where_possible(mut self) -> Result<Self> {
        if native_is_possible()? {
            self.lab.arg("--native");
        }
        Ok(self)
    }

    /// Adds an argument for this program.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds the arguments of this process.
    #[must_use]
    pub fn own_arguments(mut self) -> Self {
        self.arguments.extend(env::args().skip(1));
        self
    }

    fn command(&mut self) -> Result<&mut Command> {
        let program = env::current_exe()?;
        Ok(self.lab.arg("--").arg(program).args(&self.arguments))
    }

    /// Replaces this process with the lab.
    #[must_use]
    pub fn exec(mut self) -> Error {
        match self.command() {
            Ok(command) => Error::new(command.exec()).context("cannot run integration/lab"),
            Err(error) => error,
        }
    }

    /// Runs the lab to its end, and prints the output without the name of the host on each line.
    ///
    /// # Errors
    ///
    /// If the lab cannot be started.
    pub fn run_without_names(mut self) -> Result<ExitCode> {
        let mut lab = self
            .command()?
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run integration/lab")?;
        let printed = lab.stdout.take().context("the lab prints nothing")?;
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

/// Returns whether this machine itself has RDMA.
///
/// # Errors
///
/// If the lab's tool fails.
pub fn native_is_possible() -> Result<bool> {
    let probe = Command::new("integration/lab")
        .arg("probe")
        .stderr(Stdio::null())
        .output()
        .context("cannot run integration/lab")?;
    Ok(probe.stdout.starts_with(b"native"))
}
