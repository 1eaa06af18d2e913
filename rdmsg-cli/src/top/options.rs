use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::arguments::positive;

/// Shows the connections of processes that export their statistics
///
/// A program starts the export with `rdmsg::observe::Export`; `rdmsg serve` and `rdmsg bridge`
/// start it with --statistics. The table shows the processes of this user, and for root the
/// processes of all users. `q` or ctrl-c ends the command; any other key pauses the display.
///
/// If the terminal is too narrow for all columns, the table omits columns in this order: RESENT,
/// RESUMES, AGE, CONN, COMMAND, LABEL, OVER. On a terminal 80 characters wide, it omits all of
/// these except OVER. --json prints all values.
///
/// The second line shows the round-trip times of keepalive and of flushes, and the reasons for
/// which connections ended. It covers the time since the processes started.
///
///   CONN        number of the connection, as in the log of the process
///   LABEL       name of the connection, if the program has set one
///   OUT         bytes per second that the process sends to the peer, or `suspended` while the
///               connection is lost and can still be resumed
///   IN          bytes per second that the process receives from the peer
///   MSG/S       messages per second, sent and received together
///   STALLS      sends per second that had to wait, usually because the peer receives too slowly
///   RESUMES     number of times that the connection was resumed
///   RESENT      number of messages that were sent again when the connection was resumed
///   HELD        number of received messages that still occupy a buffer, because the program has
///               not dropped them yet
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
    /// The ids of the processes to show [default: all processes]
    pub(super) pids: Vec<u32>,

    /// The time between two updates of the table.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = positive)]
    pub(super) interval: Duration,

    /// Sort the connections by this value, largest first.
    #[arg(long, value_enum, default_value_t = Order::Bytes)]
    pub(super) sort: Order,

    /// Print the table once, after one interval, and exit.
    #[arg(long, short = '1')]
    pub(super) once: bool,

    /// Print one line of JSON per interval instead of the table.
    #[arg(long)]
    pub(super) json: bool,

    /// Also read the socket at this path, which a program passed to `Export::start_at`; can be
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
