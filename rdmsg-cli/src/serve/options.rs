use std::time::Duration;

use clap::Args;

use crate::{
    arguments::{Carrier, resume},
    measure::Size,
};

/// Answers ping, bench and doctor of other hosts
///
/// Listens over RDMA and over TCP on the same port. The first message of a connection names the
/// service: the server sends each message back (ping, bench), drops each message (bench), or
/// examines its own host and sends the findings (doctor).
///
/// Every host that can reach the port can use all three services. Messages use processor time of
/// this host. The findings contain names and addresses of devices and network interfaces, limits,
/// and whether the firewall drops RoCE. Run the server only in a network in which these facts are
/// not secret, and stop it when you no longer need it.
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

    /// The transports to listen on.
    #[arg(long, value_enum, ignore_case = true, default_value_t = Carrier::Auto)]
    pub(super) transport: Carrier,

    /// The maximum number of open connections. The server aborts further connections.
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_connections: u32,

    /// The maximum length in bytes of a message that the server accepts, such as 64K or 1M.
    #[arg(long, value_name = "BYTES", default_value = "64M")]
    pub(super) max_message: Size,

    /// The time limit for resuming a lost connection, 0 to 3600. The client must also set --resume;
    /// the smaller limit applies. With 0, lost connections are not resumed.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = resume)]
    pub(super) resume: Duration,

    /// Export statistics for `rdmsg top`.
    #[arg(long)]
    pub(super) statistics: bool,

    /// Print no line when a connection ends.
    #[arg(long, short)]
    pub(super) quiet: bool,
}
