//! The command line.

use std::{ffi::OsString, thread::available_parallelism, time::Duration};

use clap::{Args, Parser, Subcommand};

use crate::place::Driver;

/// Runs commands in virtual machines with a software RDMA device, without hardware, kernel modules
/// or privileges on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "integration/lab",
    bin_name = "integration/lab",
    verbatim_doc_comment,
    after_help = "\
First steps:
  integration/lab setup
  integration/lab exec -- ibv_devinfo
  integration/lab exec --help"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Setup(Setup),
    Exec(Exec),
    /// Opens a shell in a guest, for a person.
    ///
    /// With two hosts, the shell is on a; `busybox telnet $LAB_PEER` opens one on b. When the shell
    /// on a ends, so do the machines.
    #[command(verbatim_doc_comment)]
    Shell(MachineArgs),
    /// Says where commands can run: prints `native` if `exec --native` is possible on this machine,
    /// otherwise `vm`; and on stderr, why.
    #[command(verbatim_doc_comment)]
    Probe,
    /// Runs in a guest.
    #[command(hide = true)]
    Agent,
}

/// Installs missing packages with apt, and a kernel for the guests, which is only unpacked.
///
/// Packages are installed as root or with sudo; everything else stays in target/lab. The services
/// among them, redis-server and nginx, are neither started nor enabled. If nothing is missing, it
/// returns at once.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Setup {
    /// Leave out packages that only tests need, as for `integration/demo`.
    #[arg(long)]
    least: bool,

    /// Additional package to install, for optional tools; may be repeated.
    #[arg(long, value_name = "PACKAGE")]
    package: Vec<String>,
}

/// Runs a command in one machine, or the same command in each of two
///
/// The guest has this machine's file system, read-only, with its own /tmp and /run. The command
/// starts in the checkout, as root, with stdin from /dev/null and no limit on locked memory. When
/// it ends, the lab kills its remaining processes. stdout and stderr stay separate; with two hosts,
/// each line begins with the host's name.
///
/// These variables describe its surroundings:
///
///   LAB_HOST               name of the host: a or b
///   LAB_DEV                its RDMA device
///   LAB_DEVICES            all of them, each with its address: rxe0=10.8.0.1 siw0=10.9.0.1
///   LAB_ADDR, LAB_ADDR6    its addresses
///   LAB_PEER, LAB_PEER6    those of the other host; its own if it is alone
///   LAB_RESULTS            a writable folder that stays after the end:
///                          target/lab/results/a or b, as on this machine
///   CARGO_TARGET_DIR       cargo's target folder, where programs are
///   RDMSG_TRANSPORT        rdma, to prevent a silent fallback to TCP
///
/// RUST_BACKTRACE and RUST_LOG are passed on. Both hosts are up, their devices active and their
/// addresses known to each other, before the command starts on either.
///
/// A guest's agent sends a sign of life every 5 seconds. If none comes for 20, the lab asks QEMU's
/// monitor. A guest whose processors' registers stay the same for another 10, although this machine
/// has time for them, has stopped: the lab prints the console and the monitor's answers, keeps both
/// in target/lab/stopped, and ends the command.
///
/// The exit status is the command's (128 + N if signal N ended it), with two hosts that of the
/// first to fail; 123 after a guest stopped, 124 after a timeout, 125 if the lab itself failed, 128
/// + N when stopped by signal N.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  integration/lab exec -- ibv_devinfo
  integration/lab exec -- target/debug/deps/loopback --nocapture
  integration/lab exec --hosts 2 -- 'ping -c1 $LAB_PEER'
  integration/lab exec --counted -- 'ib_send_lat -e & ib_send_lat -e $LAB_ADDR'
  integration/lab exec --hosts 2 --timeout 60 -- \\
      'if [ $LAB_HOST = a ]; then rping -s -C10 -a $LAB_ADDR; else
       until rping -c -C10 -a $LAB_PEER; do :; done; fi'
  integration/lab exec --hosts 2 --may-die b -- \
      'if [ $LAB_HOST = b ]; then echo b >/proc/sysrq-trigger; fi;
       while ping -q -c1 -w1 $LAB_PEER; do :; done'"
)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) machines: MachineArgs,

    /// Seconds that the command may take, not counting the boot.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u32,

    /// Run it on this machine itself, without a guest; see `probe` for whether that is possible.
    #[arg(long, conflicts_with = "device")]
    pub(crate) native: bool,

    /// Run it in a guest whose clock counts instructions, to compare the costs of programs.
    ///
    /// The clock moves by one nanosecond with each instruction that the guest executes: its kernel,
    /// the driver, and all processes. A time measured inside is the number of instructions of the
    /// whole path, both ends included, and differs by less than 1 % from run to run, whatever else
    /// this machine does. It does not measure caches, waiting or the device.
    ///
    /// There is one host with one processor, which both ends share. A spinning thread wastes its
    /// time slice, so measure programs that sleep for events: ib_send_lat -e, rstream -T b. While
    /// the guest idles, its clock follows this machine's, so waiting for a timer, or for a file on
    /// this machine, is not counted exactly. A second of work takes 10 to 30 s of this machine:
    /// --timeout is in seconds of this machine, all other limits are in the guest's.
    /// CONTRIBUTING.md has the details.
    #[arg(long, verbatim_doc_comment, conflicts_with_all = ["native", "hosts", "cpus"])]
    pub(crate) counted: bool,

    /// This host may stop or restart by itself, which counts as the end of its command with
    /// status 0; may be repeated.
    #[arg(
        long,
        value_name = "HOST",
        value_parser = ["a", "b"],
        conflicts_with = "native",
        verbatim_doc_comment
    )]
    pub(crate) may_die: Vec<String>,

    /// Set a variable for the command; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(OsString, OsString)>,

    /// The command. A single argument is a line for the shell, several are taken as they are.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MachineArgs {
    /// Number of machines: 1, or 2 with a network between them.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,

    /// Processors of each machine [default: 2, but not more than there are for all machines]
    #[arg(long, value_name = "N")]
    cpus: Option<u8>,

    /// The driver of the machines' RDMA devices.
    #[arg(long, value_name = "DRIVER", value_enum, default_value_t)]
    pub(crate) device: Driver,

    /// Memory of each machine.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(crate) memory: String,
}

impl Exec {
    /// Returns the words of the command. If the command is one line for the shell, the words start
    /// with the shell.
    pub(crate) fn argv(&self) -> Vec<OsString> {
        match &*self.command {
            [line] => ["sh".into(), "-c".into(), line.clone()].to_vec(),
            several => several.to_vec(),
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }
}

impl MachineArgs {
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.into()
    }

    /// Returns the number of processors of each guest. An emulated processor that waits for a real
    /// one delays the others of its guest: on two real processors, two guests with one processor
    /// each are a third faster than with two each.
    pub(crate) fn cpus(&self) -> usize {
        let real = available_parallelism().map_or(1, usize::from);
        let fitting = (real / self.hosts()).clamp(1, 2);
        self.cpus.map_or(fitting, usize::from)
    }
}

fn variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn command_is_taken_as_it_is() {
        let cli = Cli::parse_from(["lab", "exec", "--env", "A=b=c", "--", "ls", "--hosts", "-l"]);
        let Command::Exec(exec) = cli.command else {
            panic!("not exec")
        };
        assert_eq!(exec.argv(), ["ls", "--hosts", "-l"]);
        assert_eq!(exec.env, [("A".into(), "b=c".into())]);
        assert_eq!(exec.machines.hosts(), 1);
        let cli = Cli::parse_from(["lab", "exec", "--", "echo $A"]);
        let Command::Exec(exec) = cli.command else {
            panic!("not exec")
        };
        assert_eq!(exec.argv(), ["sh", "-c", "echo $A"]);
    }

    #[test]
    fn nonsense_is_refused() {
        for args in [
            &["--hosts", "3"][..],
            &["--env", "=1"],
            &["--env", "A"],
            &["--may-die", "c"],
            &["--may-die", "a", "--native"],
            &["--counted", "--native"],
            &["--counted", "--hosts", "2"],
            &["--counted", "--cpus", "2"],
            &["--device", "mlx5"],
            &["--device", "siw", "--native"],
        ] {
            let line = ["lab", "exec"].iter().chain(args).chain(&["--", "true"]);
            assert!(Cli::try_parse_from(line).is_err(), "{args:?}");
        }
    }
}
