//! Compares rdmsg with the stock C programs on one RDMA device.
//!
//! On a developer's machine, [`drive`] starts this program again in the lab. There [`conduct`]
//! measures one part after the other: it runs clients against servers, ours and theirs in turn, by
//! a [`plan`], or under callgrind, by [`instructions`]. The results are [`row`]s of a [`report`],
//! which [`drive`] prints, or compares with the [`budget`].
//! [`program`] has the command lines. Our own programs are [`messages`], [`many`], [`one_sided`]
//! and [`calls`]; [`mod@work`] selects one of them.

mod budget;
mod callgrind;
mod calls;
mod conduct;
mod drive;
mod instructions;
mod manner;
mod many;
mod measure;
mod messages;
mod one_sided;
mod plan;
mod program;
mod report;
mod row;
mod traffic;
mod work;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{
    manner::Way,
    measure::Measure,
    row::Part,
    traffic::{Reading, Traffic},
    work::{Scope, Work},
};

/// rdmsg against the stock C programs, on one device
///
/// Measures two parts in one guest whose clock counts instructions, of both ends and their kernel;
/// each is also a command:
///
///   counted        times by that clock: exact, and the same on any machine. All programs sleep for
///                  events
///   instructions   instructions of single calls above the driver, by callgrind
///
/// Prints the table, and missing measurements with their reasons. The figures are also in
/// target/lab/results/a/bench.json, and the output of each program in *.log there. `rdmsg bench`
/// measures by the clock.
///
/// Ways to use the library:
///
///   default     the default Config
///   event       Polling::Event, which the counted programs have unless they are "default"
///   busy        Polling::Busy
///   owned       sends without a copy
///   eager       an eager size of the whole message
///   stream      a Stream
///   tasks       tasks of tokio
///   small       a Config for many connections
///   shared      one pool of receives for all connections
///   event_fd    a server that waits with epoll
///
/// Ends 0 if all programs of ours were measured.
#[derive(Parser)]
#[command(
    name = "integration/bench",
    bin_name = "integration/bench",
    verbatim_doc_comment
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Few sizes and short runs, in three minutes
    #[arg(long, global = true)]
    quick: bool,
    /// Write the table to docs/performance.md as well
    #[arg(long, global = true)]
    write: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Only times by the clock that counts instructions
    Counted,
    /// Only the instructions of single calls
    Instructions,
    /// The default Config, compared with Polling::Event, Polling::Busy and a socket of std
    ///
    /// 64 B over TCP on this machine: with both ends on one processor ("one-processor"), with four
    /// other processes for each processor ("loaded"), and on free processors ("free"), with the
    /// processor time of a message when one comes every 2 ms. Then, in the lab, TCP and RDMA in the
    /// guest whose clock counts instructions and in the one with two processors. "loaded" and
    /// "free" take the median of the round trips of a run, because another process may take a time
    /// slice in between. The others take the mean. Other load on this machine changes all but the
    /// counted figures: if the rounds do not agree on a target, it is undecided.
    Polling {
        /// Only on this machine, without virtual machines, in a minute
        #[arg(long)]
        no_lab: bool,
    },
    /// Compare a dozen counted paths, and the instructions of calls, with the stored figures
    ///
    /// Ends 1 if one is worse by more than 3 %. Instructions are compared only if the compiler is
    /// the same.
    Budget {
        /// Store the new figures, instead of comparing with the old ones
        #[arg(long)]
        renew: bool,
    },
    /// A job that this program starts itself
    #[command(hide = true)]
    Work { json: String },
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let scope = if cli.quick { Scope::Quick } else { Scope::Full };
    let write = cli.write;
    match cli.command {
        None => drive::compare(&[Part::Counted, Part::Instructions], scope, write),
        Some(Command::Counted) => drive::compare(&[Part::Counted], scope, write),
        Some(Command::Instructions) => drive::compare(&[Part::Instructions], scope, write),
        Some(Command::Polling { no_lab }) => drive::polling(!no_lab, write),
        Some(Command::Budget { renew }) => drive::budget(renew),
        Some(Command::Work { json }) => work(serde_json::from_str(&json)?),
    }
}

fn work(work: Work) -> Result<ExitCode> {
    // A thousand connections need several descriptors each.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    match work {
        Work::Perform(task, here) => conduct::perform(&task, here.as_deref())?,
        Work::Serve(traffic) => serve(&traffic)?,
        Work::Measure(traffic) => println!("{}", serde_json::to_string(&measure(&traffic)?)?),
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(traffic: &Traffic) -> Result<()> {
    match traffic.measure {
        Measure::Read | Measure::Write => one_sided::serve(traffic),
        Measure::Call => calls::serve(traffic),
        _ if traffic.manner.has(Way::EventFd) => many::serve(traffic),
        _ => messages::serve(traffic),
    }
}

fn measure(traffic: &Traffic) -> Result<Reading> {
    match traffic.measure {
        Measure::Read | Measure::Write => one_sided::measure(traffic),
        Measure::Call => calls::measure(traffic),
        _ => messages::measure(traffic),
    }
}
