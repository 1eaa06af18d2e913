//! `rdmsg doctor` checks everything that RDMA needs, and prints the commands that solve problems.
//!
//! ```text
//! options       the command line             report       prints the result
//! examination   all findings about a host    finding      the result of one check
//! root          the paths of /sys, /proc and /dev, and of the system's commands
//! distribution  how this Linux distribution installs a package
//! kernel  surroundings  limits  interfaces   checks of the system, which need no RDMA device
//! devices  adapters  hardware                the RDMA devices
//! files  libraries  firewall                 checks of what the RDMA devices need
//! exchange      sends a message from this host to itself
//! route         the route to the peer
//! peer          checks the path to another host, step by step
//! fix           creates a software RoCE device
//! ```

mod adapters;
mod devices;
mod distribution;
mod examination;
mod exchange;
mod files;
mod finding;
mod firewall;
mod fix;
mod hardware;
mod interfaces;
mod kernel;
mod libraries;
mod limits;
mod options;
mod peer;
mod report;
mod root;
mod route;
mod surroundings;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;

pub(crate) use self::{
    examination::Examination,
    finding::Finding,
    hardware::Hardware,
    options::{Checked, Options},
    report::Report,
    root::command,
};
use self::{finding::State, interfaces::Interfaces, peer::Peer, root::Root};

/// Examines this host and, if a peer is given, the path to the peer. Prints the report. With
/// `--fix`, first creates a software device if the host has no RDMA device.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let peer = options.peer.as_deref().map(Peer::find).transpose()?;
    if options.fix {
        fix::make_software_device(peer.as_ref().and_then(Peer::local))?;
    }
    let report = examine(options.transport, peer, options.timeout);
    if options.json {
        report.print_json()?;
    } else {
        report.print_text(options.quiet)?;
    }
    Ok(match report.worst() {
        State::Ok | State::Note => ExitCode::SUCCESS,
        State::Warning => ExitCode::from(3),
        State::Error => ExitCode::from(4),
    })
}

/// Examines this host and the path to a peer, for the report of `rdmsg bench`.
///
/// # Errors
///
/// Fails if the peer's name does not resolve to an address.
pub(crate) fn examine_with(peer: &str, timeout: Duration) -> Result<Report> {
    Ok(examine(Checked::Rdma, Some(Peer::find(peer)?), timeout))
}

/// Returns true if this host has an RDMA device, even if the device is not usable.
pub(crate) fn has_device() -> bool {
    let root = Root::machine();
    !devices::read(&root, &Interfaces::default()).is_empty()
}

fn examine(transport: Checked, peer: Option<Peer>, timeout: Duration) -> Report {
    let towards = peer.as_ref().and_then(Peer::local);
    let here = match transport {
        Checked::Rdma => Examination::of_this_host(towards, Some(timeout)),
        Checked::Tcp => Examination::for_tcp(timeout),
    };
    let there = peer.map(|peer| peer.examine(transport, &here, timeout));
    Report::new(here, there)
}
