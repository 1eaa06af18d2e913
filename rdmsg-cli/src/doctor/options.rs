use std::time::Duration;

use clap::{Args, ValueEnum};
use rdmsg::TransportChoice;

use crate::duration::positive;

/// Finds out why RDMA or TCP does not work, and prints the commands that fix it
///
/// Checks the kernel modules, the device files and their permissions, devices, ports, addresses,
/// the MTU, the limits on locked memory and open files, provider libraries and the firewall, and
/// sends a message over each device, or over TCP if there is none, from this host to itself. With
/// PEER, a host where `rdmsg serve` runs, it also checks step by step the route, TCP, the findings
/// of the peer about itself, both MTUs, an RDMA connection, and messages of several sizes. It names
/// the step and the side that fail.
///
/// With --transport tcp it checks only TCP, for hosts without RDMA.
///
/// Each finding contains the reason and the commands that solve the problem: first for this moment,
/// then permanently. Nothing is changed without --fix. The peer sends the commands for the peer:
/// read them before you run them.
///
/// The exit status is 0 if nothing is wrong, 3 if the transport works less well than it could, 4 if
/// it does not work, 1 if the examination itself failed, and 2 for an invalid command line.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  rdmsg doctor                 this host
  rdmsg doctor 10.8.0.1        and the way to another one, where `rdmsg serve` runs
  rdmsg doctor --transport tcp 10.8.0.1     the same for TCP alone
  sudo rdmsg doctor --fix      makes software RoCE first, if there is no RDMA device"
)]
pub(crate) struct Options {
    /// Another host, as HOST or HOST:PORT, on which `rdmsg serve` runs [default port: 7471]
    pub(super) peer: Option<String>,

    /// The transport that has to work.
    #[arg(long, value_enum, ignore_case = true, default_value = "rdma")]
    pub(super) transport: Checked,

    /// Print all findings as JSON.
    #[arg(long)]
    pub(super) json: bool,

    /// Show problems only.
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// Create a software RoCE device (rxe) first, if this host has no RDMA device. Requires root.
    #[arg(long, conflicts_with = "transport")]
    pub(super) fix: bool,

    /// The time limit of each step that uses the network.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    pub(super) timeout: Duration,
}

/// A transport that the doctor checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Checked {
    /// RDMA; without an RDMA device also TCP between this host and itself
    Rdma,
    /// TCP alone
    Tcp,
}

impl Checked {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
        }
    }
}

impl From<Checked> for TransportChoice {
    fn from(checked: Checked) -> Self {
        match checked {
            Checked::Rdma => Self::Rdma,
            Checked::Tcp => Self::Tcp,
        }
    }
}
