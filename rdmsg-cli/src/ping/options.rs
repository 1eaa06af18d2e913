use std::time::Duration;

use clap::Args;

use crate::{
    arguments::{Carrier, positive, resume},
    measure::Size,
};

/// Sends messages to `rdmsg serve` and measures their round-trip times
///
/// Messages are lost only if the connection is lost. ping then reports the loss, tries to reconnect
/// once per interval, and sends the next message over the new connection. With --resume, ping waits
/// until the lost connection is resumed, and reports how long that took. No message is lost then.
///
/// The exit status is 0 if every message came back over one connection, resumed or not. It is 2 for
/// an invalid command line, and 1 otherwise. On an interrupt (ctrl-c), ping prints the summary and
/// exits.
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

    /// The size of a message in bytes, such as 64, 4K or 1M.
    #[arg(long, short, value_name = "BYTES", default_value = "64")]
    pub(super) size: Size,

    /// The number of messages to send. Each failed attempt to reconnect counts as one message
    /// [default: until ctrl-c]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,

    /// The time from one message to the next. With 0, each message is sent as soon as the previous
    /// one has come back.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(super) interval: Duration,

    /// The time limit for connecting, and for the reply to each message.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    pub(super) timeout: Duration,

    /// The time limit for resuming a lost connection, 0 to 3600. With 0, a lost connection is not
    /// resumed. If `rdmsg serve` runs with a smaller --resume, the smaller limit applies.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = resume)]
    pub(super) resume: Duration,

    /// The transport of the connection.
    #[arg(long, value_enum, ignore_case = true, default_value_t = Carrier::Auto)]
    pub(super) transport: Carrier,

    /// Print only the summary.
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// Print a histogram of the round-trip times at the end.
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
