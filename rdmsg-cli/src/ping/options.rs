use std::time::Duration;

use clap::Args;

use crate::{
    carrier::Carrier,
    duration::{positive, resume},
    measure::Size,
};

/// Sends messages to `rdmsg serve` and measures the time until they come back
///
/// A connection never loses a message. If the connection itself is lost, ping reports that, makes a
/// new one, once an interval, and sends the next message over it. With --resume it waits until the
/// connection is resumed, and reports how long that took; no message is lost then.
///
/// It ends with 0 if every message came back over one connection, resumed or not, 1 otherwise, and
/// 2 for a wrong command line. An interrupt (ctrl-c) ends it with the summary.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  rdmsg ping 10.8.0.1                       once a second, until ctrl-c
  rdmsg ping 10.8.0.1 -c 10000 -i 0         as fast as they come back
  rdmsg ping 10.8.0.1 -s 64K --transport tcp"
)]
pub(crate) struct Options {
    /// The host, as HOST or HOST:PORT, on which `rdmsg serve` runs [default port: 7471]
    pub(super) peer: String,

    /// Bytes of a message, as 64, 4K or 1M.
    #[arg(long, short, value_name = "BYTES", default_value = "64")]
    pub(super) size: Size,

    /// The number of messages [default: until ctrl-c]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,

    /// The time between two messages; 0 sends the next when one has come back.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(super) interval: Duration,

    /// The time limit of an answer and of a connection.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    pub(super) timeout: Duration,

    /// How long a lost connection waits to be resumed, 0 to 3600; 0: it ends. The --resume of
    /// `rdmsg serve` counts as well.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = resume)]
    pub(super) resume: Duration,

    /// The transport.
    #[arg(long, value_enum, ignore_case = true, default_value_t = Carrier::Auto)]
    pub(super) transport: Carrier,

    /// Print only the summary.
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// Show how many times are in which range at the end.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(super) histogram: bool,

    /// Print the summary as JSON, and nothing else.
    #[arg(long)]
    pub(super) json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(0.0) => Ok(Duration::ZERO),
        Ok(_) | Err(_) => positive(text),
    }
}
