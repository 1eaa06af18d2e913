use std::time::Duration;

use clap::{Args, ValueEnum};
use rdmsg::TransportChoice;

use crate::arguments::positive;

/// Finds out why RDMA or TCP does not work, and prints the commands that fix it
///
/// Checks kernel modules, device files and their permissions, devices, ports, addresses, the MTU,
/// the limits on locked memory and open files, provider libraries, and the firewall. Then sends a
/// message from this host to itself over each RDMA device, or over TCP if there is no device.
///
/// With PEER, a host that runs `rdmsg serve`, also checks the path to the peer step by step: the
/// route, TCP, the findings of the peer about itself, both MTUs, an RDMA connection, and messages
/// of several sizes. If a step fails, the doctor prints which step failed, and whether the problem
/// is on this host or on the peer.
///
/// With --transport tcp it checks only TCP, for hosts without RDMA.
///
/// For each problem, the doctor prints the reason (`why`) and the commands that solve the problem
/// (`mend`). If this solution is temporary, it also prints the commands that make the solution
/// permanent (`keep`). Without --fix, the doctor changes nothing. The commands for the peer come
/// from the peer: read them before you run them.
///
/// The exit status is 0 if no problem was found, 3 if the transport works, but not as well as it
/// could, 4 if it does not work, 1 if the doctor itself failed, and 2 for an invalid command line.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  rdmsg doctor                 this host
  rdmsg doctor 10.8.0.1        this host and the path to a host that runs `rdmsg serve`
  rdmsg doctor --transport tcp 10.8.0.1     the same, but only for TCP
  sudo rdmsg doctor --fix      creates a software RoCE device first, if there is no RDMA device"
)]
pub(crate) struct Options {
    /// Another host, as HOST or HOST:PORT, on which `rdmsg serve` runs [default port: 7471]
    pub(super) peer: Option<String>,

    /// The transport to check.
    #[arg(long, value_enum, ignore_case = true, default_value = "rdma")]
    pub(super) transport: Checked,

    /// Print all findings as JSON.
    #[arg(long)]
    pub(super) json: bool,

    /// Print only the problems.
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// If this host has no RDMA device, create a software RoCE device (rxe) before the checks.
    /// Requires root.
    #[arg(long, conflicts_with = "transport")]
    pub(super) fix: bool,

    /// The time limit for each step that uses the network.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    pub(super) timeout: Duration,
}

/// A transport that the doctor checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Checked {
    /// RDMA; if this host has no RDMA device, also TCP from this host to itself
    Rdma,
    /// Only TCP
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
