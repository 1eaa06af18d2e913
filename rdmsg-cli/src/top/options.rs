use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::duration::positive;

/// Shows the connections of processes that export their statistics
///
/// A program exports them if it keeps an `rdmsg::observe::Export`; `rdmsg serve` and `rdmsg bridge`
/// do with --statistics. Shown are the processes of this user; root sees those of all users. Ctrl-c
/// ends it.
///
///   CONN        the number of the connection, as in the log of the process; LABEL: its name, if
///               the program has set one
///   OUT, IN     bytes a second that the process sends to the peer, and receives; `suspended`
///               instead while the connection is lost and may be resumed
///   MSG/S       messages a second, both ways
///   STALLS      sends a second that had to wait, because the peer reads slower
///   RESUMES     how often the connection was resumed; RESENT: the messages sent again for that
///   HELD        messages that the process has received and not dropped: their peers wait for room
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  rdmsg top
  rdmsg top --once --sort stalls
  rdmsg top --json --interval 10 >>statistics.json"
)]
pub(crate) struct Options {
    /// Only these processes.
    pub(super) pids: Vec<u32>,

    /// The time between two readings.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = positive)]
    pub(super) interval: Duration,

    /// The order of the connections.
    #[arg(long, value_enum, default_value_t = Order::Bytes)]
    pub(super) sort: Order,

    /// Print it once, after one interval.
    #[arg(long, short = '1')]
    pub(super) once: bool,

    /// Print a line of JSON for each reading.
    #[arg(long)]
    pub(super) json: bool,

    /// Another socket to read, as of `Export::start_at`; may be repeated.
    #[arg(long = "socket", value_name = "PATH")]
    pub(super) sockets: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
    Bytes,
    Messages,
    Stalls,
    Held,
    Age,
}
