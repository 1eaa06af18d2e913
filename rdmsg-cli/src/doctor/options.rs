use std::time::Duration;

use clap::Args;

use crate::duration::positive;

/// Finds out why RDMA does not work, and prints the commands that mend it
///
/// Checks the kernel modules, the device files and their permissions, devices, ports, addresses,
/// the MTU, the limits on locked memory and open files, provider libraries and the firewall, and
/// sends a message over each device from this host to itself. With PEER, a host where `rdmsg serve`
/// runs, it also checks step by step the route, TCP, the findings of the peer about itself, both
/// MTUs, an RDMA connection, and messages of several sizes. It names the step and the side that
/// fail.
///
/// Each finding contains the reason and the commands that solve the problem: first for this moment,
/// then permanently. Nothing is changed without --fix. The peer sends the commands for the peer:
/// read them before you run them.
///
/// The exit status is 0 if nothing is wrong, 3 if RDMA works less well than it could, 4 if RDMA
/// does not work, 1 if the examination itself failed, and 2 for an invalid command line.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  rdmsg doctor                 this host
  rdmsg doctor 10.8.0.1        and the way to another one, where `rdmsg serve` runs
  sudo rdmsg doctor --fix      makes software RoCE first, if there is no RDMA device"
)]
pub(crate) struct Options {
    /// Another host, as HOST or HOST:PORT, on which `rdmsg serve` runs [default port: 7471]
    pub(super) peer: Option<String>,

    /// Print all findings as JSON.
    #[arg(long)]
    pub(super) json: bool,

    /// Show problems only.
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// Create a software RoCE device (rxe) first, if this host has no RDMA device. Requires root.
    #[arg(long)]
    pub(super) fix: bool,

    /// The time limit of each step that uses the network.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    pub(super) timeout: Duration,
}
