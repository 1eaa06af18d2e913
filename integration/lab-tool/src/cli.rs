//! The options of the command line.

use std::{ffi::OsString, thread::available_parallelism, time::Duration};

use clap::{Args, Parser, Subcommand, builder::RangedU64ValueParser};

use crate::host_network::Driver;

/// Runs commands in virtual machines (guests) that have a software RDMA device. Needs no RDMA
/// hardware, no kernel modules and no privileges on this machine.
#[derive(Debug, Parser)]
#[command(
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
    /// Opens an interactive shell in a guest.
    ///
    /// With two hosts, the shell runs on host a, and `busybox telnet $LAB_PEER` opens a shell on
    /// host b. When the shell on host a ends, the lab switches off both hosts.
    #[command(verbatim_doc_comment)]
    Shell(MachineArgs),
    /// Prints `native` if `exec --native` is possible on this machine, otherwise `vm`. Prints the
    /// reason to stderr.
    #[command(verbatim_doc_comment)]
    Probe,
    /// Runs as the agent of a guest.
    #[command(hide = true)]
    Agent,
}

/// Installs missing packages with apt, and unpacks a kernel for the guests.
///
/// Packages are installed as root or with sudo; all other files stay in target/lab. The packages
/// include the services redis-server and nginx, which are neither started nor enabled. If nothing
/// is missing, returns immediately.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct Setup {
    /// Do not install the packages that only tests need.
    #[arg(long)]
    least: bool,

    /// Additional package to install; can be repeated.
    #[arg(long, value_name = "PACKAGE")]
    package: Vec<String>,
}

/// Runs a command in one guest, or the same command in each of two guests
///
/// A guest has read-only access to this machine's file system, and has its own /tmp and /run. The
/// command starts in the checkout, as root, with /dev/null as stdin, and without a limit on locked
/// memory. When the command ends, the lab kills all processes that the command has left running.
/// stdout and stderr stay separate; with two hosts, each line begins with the host's name.
///
/// The command has these environment variables:
///
///   LAB_HOST               name of the host: a or b
///   LAB_DEV                name of the host's RDMA device
///   LAB_DEVICES            all RDMA devices of the host, each with its address:
///                          rxe0=10.8.0.1 siw0=10.9.0.1
///   LAB_ADDR, LAB_ADDR6    addresses of the host
///   LAB_PEER, LAB_PEER6    addresses of the other host; with one host, its own addresses
///   LAB_RESULTS            a writable folder that is kept after the run; on this
///                          machine it is target/lab/results/a or b
///   CARGO_TARGET_DIR       cargo's target folder, which contains the programs
///   RDMSG_TRANSPORT        rdma, to prevent a silent fallback to TCP
///
/// RUST_BACKTRACE and RUST_LOG of this machine's environment are passed on. The command starts when
/// all hosts have booted, their devices are active, and each host can reach the other.
///
/// A guest's agent sends a heartbeat every 5 s. If none arrives for 20 s, the lab queries QEMU's
/// monitor. The lab considers the guest stopped if its registers do not change for another 10 s,
/// although this machine has processor time for the guest. The lab then prints the console and the
/// answers of the monitor, saves both in target/lab/stopped, and ends the command.
///
/// The exit status is that of the command, or 128 + N if signal N has ended the command. With two
/// hosts, it is the status of the first command that fails, or 0 if no command fails. The lab also
/// uses these values:
///
///   123                    a guest has stopped, or a command with this exit status
///   124                    the command has not ended within --timeout
///   125                    the lab itself has failed
///   128 + N                signal N has ended the lab
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

    /// Time limit of the command in seconds. The time of the boot does not count.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u32,

    /// Run the command on this machine, without a guest. `probe` prints whether this is possible.
    #[arg(long, conflicts_with = "device")]
    pub(crate) native: bool,

    /// Run the command in a guest whose clock counts instructions, to compare the costs of
    /// programs.
    ///
    /// The clock advances by 1 ns for each instruction that the guest executes in the kernel, the
    /// driver or a process. A time measured in the guest is therefore the number of instructions of
    /// the whole path, including both sides. It differs by less than 1 % between runs, even if
    /// other programs use this machine. It does not include the effects of caches or of the device,
    /// or time spent waiting.
    ///
    /// Both sides share one host with one processor. A thread that spins therefore keeps the
    /// processor from the other side for a whole time slice. So measure programs that sleep until
    /// an event arrives, for instance `ib_send_lat -e` or `rstream -T b`. While the guest idles,
    /// its clock follows this machine's clock. The count is therefore inexact if the guest waits
    /// for a timer, or for a file of this machine.
    ///
    /// One second of the guest's clock takes 10 to 30 s. --timeout is measured by this machine's
    /// clock, and all other time limits by the guest's clock. CONTRIBUTING.md has the details.
    #[arg(long, verbatim_doc_comment, conflicts_with_all = ["native", "hosts", "cpus"])]
    pub(crate) counted: bool,

    /// Permit this host to stop or restart; can be repeated. If it stops or restarts, its command
    /// counts as ended with status 0.
    #[arg(
        long,
        value_name = "HOST",
        value_parser = ["a", "b"],
        conflicts_with = "native",
        verbatim_doc_comment
    )]
    pub(crate) may_die: Vec<String>,

    /// Set an environment variable for the command; can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(OsString, OsString)>,

    /// The command. A single argument is passed to `sh -c`; several arguments are a program and its
    /// arguments, which run without a shell.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MachineArgs {
    /// Number of guests: 1, or 2 with a network between them.
    #[arg(
        long,
        value_name = "1|2",
        default_value_t = 1,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=2)
    )]
    pub(crate) hosts: usize,

    /// Processors of each guest [default: 2, or 1 if this machine has fewer than 2 per guest]
    #[arg(long, value_name = "N")]
    cpus: Option<u8>,

    /// Driver of the guests' RDMA devices.
    #[arg(long, value_name = "DRIVER", value_enum, default_value_t)]
    pub(crate) device: Driver,

    /// Memory of each guest, such as 512M or 2G.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(crate) memory: String,
}

impl Exec {
    /// Returns the program to run and its arguments. A single argument is a command line for `sh
    /// -c`.
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
    /// Returns the number of processors of each guest. The default is limited to this machine's
    /// processors, because an emulated processor that waits for a real one delays the others. On a
    /// machine with two processors, two guests with one processor each run about 33 % faster than
    /// two guests with two processors each.
    pub(crate) fn cpus(&self) -> usize {
        let real = available_parallelism().map_or(1, usize::from);
        let fitting = (real / self.hosts).clamp(1, 2);
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
    fn script_prints_the_help_of_its_tool() {
        hosts::check_help("lab", &Cli::command().render_help().to_string());
    }

    #[test]
    fn command_is_taken_as_it_is() {
        let cli = Cli::parse_from(["lab", "exec", "--env", "A=b=c", "--", "ls", "--hosts", "-l"]);
        let Command::Exec(exec) = cli.command else {
            panic!("not exec")
        };
        assert_eq!(exec.argv(), ["ls", "--hosts", "-l"]);
        assert_eq!(exec.env, [("A".into(), "b=c".into())]);
        assert_eq!(exec.machines.hosts, 1);
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
