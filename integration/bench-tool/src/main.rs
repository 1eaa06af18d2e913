//! Compares rdmsg with the stock C programs on one RDMA device.
//!
//! Started on a developer's machine, [`drive`] starts it anew on the hosts of the lab. There one
//! host has an agent that starts servers, and on the other [`conduct`] runs clients against them,
//! ours and theirs in turn, as a [`plan`] says, or under callgrind, as in [`instructions`]. What
//! they come to are [`row`]s, of which [`drive`] makes a [`report`], or compares them with the
//! [`budget`]. How other programs are called is in [`program`]; ours are [`traffic`], [`idle`] and
//! [`calls`].

mod budget;
mod callgrind;
mod calls;
mod carrier;
mod conduct;
mod connections;
mod drive;
mod idle;
mod instructions;
mod manner;
mod many;
mod measure;
mod one_sided;
mod part;
mod plan;
mod plot;
mod program;
mod reading;
mod report;
mod ring;
mod row;
mod samples;
mod target;
mod traffic;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{calls::Calls, drive::Tasks, idle::Idle, part::Part, traffic::Traffic};

/// rdmsg against the stock C programs, on one device
///
/// Measures in three parts, of which each is a command and all are one table:
///
///   counted        in one guest whose clock counts instructions, of both ends and their kernel:
///                  exact, and the same on any machine. Everything sleeps for events there
///   instructions   what single calls execute above the driver, by callgrind
///   clock          by the machine's clock, in rounds of ours and theirs in turn. A ratio is judged
///                  where the target is outside of the interval in which its median lies with 95 %
///
/// The table is printed, and written with JSON and plots to target/bench; what could not be
/// measured is listed with the reason. What each program printed is in target/lab/results/*/*.log.
///
/// "rdmsg" has the default Config; "event" sleeps at once and "busy" never; "owned" sends without a
/// copy; "hold_back" has Config::hold_back; "eager" has buffers posted that are as long as the
/// message; "stream" and "tasks" are Stream and tokio; "small" has a Config for many connections,
/// "shared" one pool of receives for them, and with "event_fd" their server waits with epoll;
/// "deep" has a window and a send depth of 512 and 128, which are perftest's; "written" has RDMA
/// WRITE put messages into memory that the other side spins on.
///
/// Ends 0 if ours was measured. Other load on the machine spoils what is measured by the clock.
#[derive(Parser)]
#[command(
    name = "integration/bench",
    bin_name = "integration/bench",
    verbatim_doc_comment,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Only what is measured in the guest whose clock counts instructions
    Counted(Options),
    /// Only what callgrind counts
    Instructions(Options),
    /// Only what is measured by the clock
    Clock(Options),
    /// Only how the default Config waits, beside Polling::Event, Polling::Busy and a socket of std
    ///
    /// 64 B over TCP on this machine: with both ends on one processor ("one-processor"), beside
    /// four other processes for each processor ("loaded"), and on free processors ("clock"), with
    /// the processor time of a message when one comes every 2 ms. Then, in the lab, TCP and RDMA in
    /// the guest whose clock counts instructions and in the one with two processors. Of each run
    /// "loaded" and "clock" take the median of the round trips, since a time slice of another
    /// process says nothing of these programs, and the others take the mean. Other load on this
    /// machine spoils what is measured by the clock. Prints a table.
    Polling(PollingOptions),
    /// Compare a dozen counted paths, and the instructions of calls, with the figures that are kept
    ///
    /// Ends 1 where one is worse by more than 3 %. Instructions are compared where the compiler is
    /// the one of the figures.
    Budget(Renewal),

    /// What is done in the lab
    #[command(hide = true)]
    Perform(Tasks),
    /// Answer what `client` with the same options sends
    #[command(hide = true)]
    Server(Traffic),
    /// Measure against `server` with the same options
    #[command(hide = true)]
    Client(Traffic),
    /// Accept connections that stay idle, until they are closed
    #[command(hide = true)]
    IdleServer(Idle),
    /// Say what an idle connection costs, against `idle-server` with the same options
    #[command(hide = true)]
    IdleClient(Idle),
    /// Answer what `calls-client` sends, before that receives it
    #[command(hide = true)]
    CallsServer(Calls),
    /// Make calls that callgrind counts
    #[command(hide = true)]
    CallsClient(Calls),
}

/// What to compare.
#[derive(Args, Clone, Copy)]
struct Options {
    /// Few sizes and short runs: three minutes for all parts, on an idle machine
    #[arg(long)]
    quick: bool,
    /// End 1 if a target is missed
    #[arg(long)]
    strict: bool,
    /// How often the clock is read of each program [default: 9, with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// By the clock, with both ends on one host, or on two with a wire between them
    /// [default: one, then two; with --quick one]
    ///
    /// Virtual machines share the processors of this one, and their wire takes longer than the
    /// programs do and varies more.
    #[arg(long, verbatim_doc_comment, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: Option<u8>,
}

#[derive(Args, Clone, Copy)]
struct PollingOptions {
    /// Only what this machine can measure itself, in a minute
    #[arg(long)]
    no_lab: bool,
    /// End 1 if a target is missed
    #[arg(long)]
    strict: bool,
    /// How often each program is run by the clock [default: 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
}

#[derive(Args)]
struct Renewal {
    /// Keep what is measured now, instead of comparing with it
    #[arg(long)]
    renew: bool,
}

fn main() -> ExitCode {
    run(Cli::parse()).unwrap_or_else(|error| {
        eprintln!("bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(cli: Cli) -> Result<ExitCode> {
    use Part::{Clock, Counted, Instructions};
    // A thousand connections have some files each.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    match cli.command {
        None => return drive::compare(&[Counted, Instructions, Clock], cli.options),
        Some(Command::Counted(options)) => return drive::compare(&[Counted], options),
        Some(Command::Instructions(options)) => return drive::compare(&[Instructions], options),
        Some(Command::Clock(options)) => return drive::compare(&[Clock], options),
        Some(Command::Polling(options)) => return drive::polling(options),
        Some(Command::Budget(Renewal { renew })) => return drive::budget(renew),
        Some(Command::Perform(tasks)) => tasks.perform()?,
        Some(Command::Server(traffic)) => traffic.serve()?,
        Some(Command::Client(traffic)) => println!("{}", traffic.measure()?),
        Some(Command::IdleServer(idle)) => idle.serve()?,
        Some(Command::IdleClient(idle)) => println!("{}", idle.measure()?),
        Some(Command::CallsServer(calls)) => calls.serve()?,
        Some(Command::CallsClient(calls)) => calls.make()?,
    }
    Ok(ExitCode::SUCCESS)
}
