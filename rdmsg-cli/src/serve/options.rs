use std::time::Duration;

use clap::Args;

use crate::{carrier::Carrier, duration::resume, measure::Size};

/// Serves ping, bench and the doctor of other hosts
///
/// Listens over RDMA and over TCP on the same port. The first message of a connection has its
/// purpose: messages come back (ping, bench), or are received and dropped (bench), or the findings
/// of this host about itself are sent (doctor).
///
/// Every host that reaches the port may use all of it: messages cost this host time, and the
/// findings contain names and addresses of devices and network interfaces, limits, and whether the
/// firewall drops RoCE. Run it only in a network in which these facts are not secret, and only
/// while you need it.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  rdmsg serve                        on all addresses, port 7471
  rdmsg serve 10.8.0.1:7000          on one address and another port"
)]
pub(crate) struct Options {
    /// Addresses to listen on, as HOST:PORT.
    #[arg(default_value = "0.0.0.0:7471")]
    pub(super) addresses: Vec<String>,

    /// The transports.
    #[arg(long, value_enum, ignore_case = true, default_value_t = Carrier::Auto)]
    pub(super) transport: Carrier,

    /// The maximum number of connections; a further one is refused.
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_connections: u32,

    /// The longest message that a connection may send.
    #[arg(long, value_name = "BYTES", default_value = "64M")]
    pub(super) max_message: Size,

    /// How long a lost connection waits to be resumed, 0 to 3600, if its client wants that.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = resume)]
    pub(super) resume: Duration,

    /// Export statistics for `rdmsg top`.
    #[arg(long)]
    pub(super) statistics: bool,

    /// Print nothing about single connections.
    #[arg(long, short)]
    pub(super) quiet: bool,
}
