//! Compares rdmsg with the stock C programs on one RDMA device.
//!
//! On a developer's machine, [`drive`] starts this program again in the lab. In the lab,
//! [`conduct`] performs one task of the [`plan`] after the other. It runs servers and clients, and
//! our programs and the stock programs alternate. It also counts the instructions of clients under
//! callgrind, with the help of [`instructions`]. The results are [`row`]s of a [`report`], which
//! [`drive`] prints or compares with the [`budget`]. [`program`] contains the command lines.
//!
//! Our own programs are [`messages`], [`many`], [`one_sided`], [`idle`] and [`calls`]. The program
//! [`messages`] also exchanges the sizes of a [`sweep`]. With [`alternatives`], some of these
//! programs use connections of other libraries instead of rdmsg, for instance those in
//! [`c_sockets`] and [`plain_verbs`].

mod alternatives;
mod budget;
mod c_sockets;
mod callgrind;
mod calls;
mod conduct;
mod drive;
mod idle;
mod instructions;
mod kernel;
mod manner;
mod many;
mod measure;
mod messages;
mod one_sided;
mod plain_verbs;
mod plan;
mod program;
mod report;
mod row;
mod sweep;
mod traffic;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::de::DeserializeOwned;

use crate::{measure::Measure, plan::Task, row::Part, traffic::Traffic};

/// Compares rdmsg with the stock C programs, on one device
///
/// Measures in one guest of the lab. The guest's clock counts the instructions that both ends and
/// their kernel execute. The measurement has two parts, and each part is also a command:
///
///   counted        times by the clock of the guest, which are exact and the same on any machine.
///                  All programs sleep while they wait for events
///   instructions   instructions of single calls, counted with callgrind, without the instructions
///                  of the driver
///
/// Prints the table, and each missing measurement with the reason. Also writes the figures to
/// target/lab/results/a/bench.json, and the output of each program to a *.log file in the same
/// folder. To measure in real time, use `rdmsg bench`.
///
/// Names of the ways to use the library:
///
///   default     the default Config
///   event       Polling::Event; counted programs use it unless they are called "default"
///   busy        Polling::Busy
///   owned       sends without a copy
///   eager       an eager size equal to the message size
///   stream      a Stream
///   tasks       tasks of tokio
///   small       a Config for many connections
///   shared      one pool of receives for all connections
///   event_fd    a server that waits with epoll
///   group       a server that waits for a Group
///
/// Programs for comparison:
///
///   perftest, rstream, ucmatose
///               the stock C programs
///   verbs       the verbs that rdmsg calls, without rdmsg: messages with credits, but without
///               headers and locks
///   std         a TCP socket of std, with a length before each message
///   codec       a TcpStream of tokio with LengthDelimitedCodec
///   zeromq      pairs of sockets of libzmq, over TCP
///   nng         pairs of sockets of libnng, over TCP
///
/// The exit status is 0 if all programs that use rdmsg were measured.
#[derive(Parser)]
#[command(bin_name = "integration/bench", verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Measure fewer sizes with shorter runs; takes about three minutes
    #[arg(long, global = true)]
    quick: bool,
    /// Also write the table to docs/performance.md
    #[arg(long, global = true)]
    write: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Measure only times, with the clock that counts instructions
    Counted {
        /// Measure only comparisons whose name contains this text; can be repeated
        ///
        /// The names are those in integration/bench-tool/budget.json, for instance "one way, 64 B:
        /// rdmsg event tcp / std".
        #[arg(long, value_name = "TEXT", conflicts_with = "write")]
        only: Vec<String>,
    },
    /// Measure only the instructions of single calls
    Instructions,
    /// Compare the default Config with Polling::Event, Polling::Busy and a socket of std
    ///
    /// First measures messages of 64 B over TCP on this machine. The column "part" of the table
    /// names the conditions: "one-processor" means that both ends run on one processor, "loaded"
    /// that four other busy processes run on each processor, and "free" that the processors are
    /// otherwise idle. Under the condition "free", also measures the processor time per message if
    /// a message arrives every 2 ms.
    ///
    /// Then measures in the lab: TCP and RDMA in a guest whose clock counts instructions, and the
    /// processor time over RDMA in a guest with two processors.
    ///
    /// The figure of a run is the mean of its round trips. For "loaded" and "free", it is the
    /// median, because another process can interrupt a round trip. Other load on this machine
    /// changes all figures except the counted ones. If some rounds meet a target and others do not,
    /// the target is undecided.
    Polling {
        /// Measure only on this machine, without virtual machines; takes about one minute
        #[arg(long)]
        no_lab: bool,
    },
    /// Compare servers with many connections over TCP, and idle connections
    ///
    /// Compares rdmsg with the same program over a socket of std or with tokio's codec, with a
    /// clock that counts instructions. Measures half a round trip of 64 B with 1, 100 and 1000
    /// connections that one thread serves. Only one of the connections has a message in flight at a
    /// time. In the rows with "at once", each connection has one message in flight.
    ///
    /// The processor time and the system calls to open and close a connection are those of both
    /// ends. The memory and the descriptors of an idle connection are those of one end. The
    /// processor share of idle connections includes both ends and the kernel.
    ///
    /// The memory is measured without huge pages, unless the row says otherwise. A target for
    /// system calls, memory, descriptors or a processor share limits the figure of rdmsg. All other
    /// targets limit the ratio of the figure of rdmsg to the figure of the other program.
    Many {
        /// Measure only comparisons whose name contains this text; can be repeated
        #[arg(long, value_name = "TEXT", conflicts_with = "write")]
        only: Vec<String>,
    },
    /// Compare the default Config with perftest, between two guests over a slow network
    ///
    /// Measures the rate in one direction in real time, in seven rounds. Both programs use their
    /// default windows and depths. netem slows down the network so far that the network limits the
    /// rate, and not the processors. With other load on this machine, the processors can still
    /// limit the rate.
    Hosts,
    /// Look for a message size that costs more than its neighbours
    ///
    /// Counts the instructions of half a round trip for 60 sizes from 1 B to 4 MiB. The sizes are
    /// at and around each size at which the cost can change: the inline size, multiples of the
    /// packet size, the eager size, the longest message that is sent in frames, and the length that
    /// one RDMA READ transfers. Measures rdmsg over RDMA and over TCP. For comparison, also
    /// measures `std`, and `verbs` up to 128 KiB.
    ///
    /// The "step" of a size is the larger of two ratios. The first ratio is the cost per byte of
    /// the size, divided by the cost per byte of the next smaller size. The second ratio is the
    /// cost of the size, divided by the cost of the next larger size. The bound is 1.10: one
    /// additional byte must not increase the cost by more than 10 %, and a message must not cost
    /// more than 1.10 times as much as a longer one. A star marks a step above the bound.
    ///
    /// The exit status is 1 if a step of rdmsg is above the bound, or if rdmsg was not measured.
    /// The budget has a row for the worst step of each transport.
    Sweep,
    /// Compare counted times and instructions of calls with the stored figures
    ///
    /// If a figure is more than 3 % worse than the stored figure, or is missing, measures a second
    /// time. The exit status is 1 if the figure is worse or missing again. Times are compared only
    /// if the kernel belongs to the release series of the stored figures. Instructions are compared
    /// only if the compiler is the same.
    Budget {
        /// Store the new figures instead of comparing them
        #[arg(long)]
        renew: bool,
    },
    /// Perform tasks in the lab; for internal use
    #[command(hide = true)]
    Perform {
        #[arg(value_parser = json::<Task>)]
        tasks: Vec<Task>,
    },
    /// Run a server for one client; for internal use
    #[command(hide = true)]
    Serve {
        #[arg(value_parser = json::<Traffic>)]
        traffic: Traffic,
    },
    /// Run a client and print its figures; for internal use
    #[command(hide = true)]
    Measure {
        #[arg(value_parser = json::<Traffic>)]
        traffic: Traffic,
    },
}

fn json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text)
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let write = cli.write;
    let task = |part, rows: &str| Task {
        quick: cli.quick,
        ..Task::new(part, rows)
    };
    let counted = task(Part::Counted, "counted");
    let instructions = task(Part::Instructions, "instructions");
    match cli.command {
        None => drive::compare(&[counted, instructions], write),
        Some(Command::Counted { only }) => drive::compare(&[Task { only, ..counted }], write),
        Some(Command::Instructions) => drive::compare(&[instructions], write),
        Some(Command::Polling { no_lab }) => drive::polling(!no_lab, write),
        Some(Command::Many { only }) => {
            let many = Task::new(Part::Counted, "many");
            drive::compare(&[Task { only, ..many }], write)
        }
        Some(Command::Hosts) => drive::compare(&[Task::new(Part::Hosts, "hosts")], write),
        Some(Command::Sweep) => drive::sweep(write),
        Some(Command::Budget { renew }) => drive::budget(renew),
        Some(Command::Perform { tasks }) => {
            conduct::perform_in_lab(&tasks).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Serve { traffic }) => serve(&traffic).map(|()| ExitCode::SUCCESS),
        Some(Command::Measure { traffic }) => measure(&traffic).map(|()| ExitCode::SUCCESS),
    }
}

/// The limit on file descriptors, which is high enough for 10,000 connections.
const DESCRIPTORS: u64 = 100_000;

/// Raises the limit on file descriptors, because there can be thousands of connections and each
/// needs several descriptors. In the lab, this process runs as root and can raise the hard limit.
/// Any other user can raise only the soft limit.
fn raise_limit() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let raise = |most| setrlimit(Resource::RLIMIT_NOFILE, most, most);
    Ok(raise(most.max(DESCRIPTORS)).or_else(|_| raise(most))?)
}

fn serve(traffic: &Traffic) -> Result<()> {
    raise_limit()?;
    match traffic.measure {
        Measure::Read | Measure::Write => one_sided::serve(traffic),
        Measure::Call => calls::serve(traffic),
        measure if measure.is_of_idle() => idle::serve(traffic),
        Measure::HalfRoundTrip | Measure::AtOnce if many::serves(traffic) => many::serve(traffic),
        _ => messages::serve(traffic),
    }
}

fn measure(traffic: &Traffic) -> Result<()> {
    raise_limit()?;
    let readings = match traffic.measure {
        Measure::Read | Measure::Write => vec![one_sided::measure(traffic)?],
        Measure::Call => return calls::measure(traffic),
        measure if measure.is_of_idle() => vec![idle::measure(traffic)?],
        _ => messages::measure(traffic)?,
    };
    println!("{}", serde_json::to_string(&readings)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use toolbox::check_help;

    use super::*;

    #[test]
    fn script_prints_the_help_of_its_tool() {
        check_help("bench", &Cli::command().render_long_help().to_string());
    }
}
