use std::time::Duration;

use clap::Args;

use crate::duration::positive;

/// Finds out why RDMA does not work, and prints the commands that mend it
///
/// Checks the kernel's modules, the device files and their rights, devices, ports, addresses, the
/// MTU, the limits of locked memory and open files, driver libraries and the firewall, and sends a
/// message over each device to this host itself. With PEER, a host that runs `rdmsg serve`, it also
/// checks step by step the route, TCP, the findings of the peer about itself, both MTUs, an RDMA
/// connection, and messages of several sizes, and names the step and the side that fail.
///
/// Each finding has the reason and the commands that mend it: first for this moment, then for good.
/// Nothing is changed without --fix. Commands for the peer come from the peer: read them before you
/// type them.
///
/// It ends with 0 if nothing is wrong, 3 if something works less well than it could, 4 if RDMA does
/// not work, 1 if the examination itself failed, and 2 for a wrong command line.
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

    /// Print everything as JSON.
    #[arg(long)]
    pub(super) json: bool,

    /// Show problems only.
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// Make a software RoCE device (rxe) first, if this host has no RDMA device. Takes root.
    #[arg(long)]
    pub(super) fix: bool,

    /// The time limit of each step that uses the network.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    pub(super) timeout: Duration,
}
