use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::duration::positive;

/// Shows the connections of processes that export their statistics
///
/// A program exports its statistics while it holds an `rdmsg::observe::Export`; `rdmsg serve` and
/// `rdmsg bridge` do so with --statistics. The table has the processes of this user, and for root
/// the processes of all users. `q` or Ctrl-c ends the command, any other key pauses it.
///
/// A terminal narrower than the table omits columns, in this order: RESENT, RESUMES, AGE, CONN,
/// COMMAND, LABEL, OVER. With 80 columns it has none of them except OVER; --json has all values.
///
/// The second line has the round trips of keepalive and of flushes, and the reasons for which
/// connections ended, since the processes started.
///
///   CONN        the number of the connection, as in the log of the process; LABEL: its name, if
///               the program has set one
///   OUT, IN     bytes per second that the process sends to the peer, and receives; OUT is
///               `suspended` while the connection is lost and can still be resumed
///   MSG/S       messages per second, in both directions
///   STALLS      sends per second that waited, because the peer receives more slowly
///   RESUMES     how often the connection was resumed; RESENT: the messages sent again for that
///   HELD        received messages that the process has not dropped yet: their buffers are not free
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
    /// The ids of the processes to show. Without them, the table has all processes.
    pub(super) pids: Vec<u32>,

    /// The time between two readings of the counters.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = positive)]
    pub(super) interval: Duration,

    /// The value by which the connections are sorted, the largest first.
    #[arg(long, value_enum, default_value_t = Order::Bytes)]
    pub(super) sort: Order,

    /// Print the table once, after one interval, and exit.
    #[arg(long, short = '1')]
    pub(super) once: bool,

    /// Print a line of JSON for each reading.
    #[arg(long)]
    pub(super) json: bool,

    /// Another socket to read, at the path that the program passed to `Export::start_at`; can be
    /// repeated.
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
