use std::{
    env,
    io::{BufRead, BufReader, Write, stdout},
    os::unix::process::CommandExt,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Error, Result};
use clap::ValueEnum;

/// The exit status of `integration/lab exec` when the lab itself fails, as opposed to the command.
pub const LAB_FAILED: i32 = 125;

/// The exit status of `integration/lab exec` if a guest has stopped responding, as opposed to a
/// failure of the command.
pub const LAB_STOPPED: i32 = 123;

/// The advice that is printed if the lab has failed.
pub const NO_LAB: &str = "There is no RDMA device, and the lab failed: see above. To set up \
    the lab again: rm -r target/lab, then integration/lab setup";

/// The driver of the devices in the lab's virtual machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LabDevice {
    /// Software RoCE
    #[default]
    Rxe,
    /// Software iWARP
    Siw,
}

/// Builds and runs a command that starts this program again, on the hosts of the lab. The working
/// directory must be the checkout. `integration/tool` changes to it before it starts this program.
#[derive(Debug)]
#[must_use]
pub struct Launch {
    lab: Command,
    arguments: Vec<String>,
}

impl Launch {
    /// Creates a launch on one host or on two. The lab kills the program after `limit`.
    pub fn new(hosts: u8, limit: Duration) -> Self {
        Self::on(&["--hosts", &hosts.to_string()], limit)
    }

    /// Creates a launch on one host whose clock counts instructions. The lab kills the program
    /// after `limit`, measured with this machine's clock.
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
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.lab.args([name, value]);
        self
    }

    /// Selects the driver of the RDMA devices.
    pub fn device(self, device: LabDevice) -> Self {
        match device {
            LabDevice::Rxe => self,
            LabDevice::Siw => self.option("--device", "siw"),
        }
    }

    /// Selects this machine instead of guests, if this machine has an RDMA device.
    ///
    /// # Errors
    ///
    /// If `integration/lab probe` cannot be run.
    pub fn native_where_possible(mut self) -> Result<Self> {
        if native_is_possible()? {
            self.lab.arg("--native");
        }
        Ok(self)
    }

    /// Adds an argument to the command line of the program on the hosts.
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds the arguments of this process to the command line of the program on the hosts.
    pub fn own_arguments(mut self) -> Self {
        self.arguments.extend(env::args().skip(1));
        self
    }

    fn command(&mut self) -> Result<&mut Command> {
        let program = env::current_exe()?;
        Ok(self.lab.arg("--").arg(program).args(&self.arguments))
    }

    /// Replaces this process with `integration/lab exec`. Returns only if the exec fails.
    pub fn exec(mut self) -> Error {
        match self.command() {
            Ok(command) => Error::new(command.exec()).context("cannot run integration/lab"),
            Err(error) => error,
        }
    }

    /// Runs `integration/lab exec` and waits until it ends. Prints the programs' output without the
    /// prefix that names the host.
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

/// Returns whether this machine has an RDMA device.
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
