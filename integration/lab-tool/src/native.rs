//! Runs commands on this machine if it has an RDMA device or can create one.

use std::{
    env,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
    sync::mpsc::channel,
    thread,
};

use anyhow::{Context, Result, ensure};
use hosts::{Program, wire::Job};
use nix::{
    sys::{
        resource::{RLIM_INFINITY, Resource, setrlimit},
        signal::{Signal, killpg},
    },
    unistd::{Pid, geteuid},
};

use crate::{
    cli::Exec,
    device::{self, run},
    host_network::{Driver, HOSTS, HostNetwork},
    lab::Lab,
    output::follow,
    qemu::kill_with_parent,
    watch::Watch,
};

/// The network device that the lab creates if this machine has no RDMA device.
const NETDEV: &str = "lab0";
/// The RDMA device that the lab creates on `NETDEV`.
const DEVICE: &str = "lab_rxe0";

/// Returns an existing device with its addresses. Returns `None` if there is no usable device but
/// the lab can create a software device. Fails if there is no usable device and the lab cannot
/// create one.
pub(crate) fn offer() -> Result<Option<HostNetwork>> {
    let network = device::all().into_iter().find_map(network_on);
    if network.is_some() {
        return Ok(network);
    }
    let no_device = "there is no active RDMA device with an IPv4 address";
    ensure!(
        geteuid().is_root(),
        "{no_device}, and only root can create one with rdma_rxe"
    );
    if !Path::new("/sys/module/rdma_rxe").exists() {
        run("modprobe --dry-run rdma_rxe")
            .with_context(|| format!("{no_device}, and rdma_rxe cannot be loaded to create one"))?;
    }
    Ok(None)
}

fn network_on(device: String) -> Option<HostNetwork> {
    let (addr, addr6) = usable(&device::gids(&device));
    let addr = addr.filter(|_| device::is_active(&device))?;
    Some(HostNetwork {
        host: HOSTS[0],
        devices: vec![(device, addr)],
        peer: addr,
        addr6,
        peer6: addr6,
    })
}

/// Returns the first usable IPv4 address and the first usable IPv6 address. Skips empty entries of
/// the GID table, and link-local addresses, which need a scope ID.
fn usable(gids: &[Ipv6Addr]) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let is_v6 = |gid: &&Ipv6Addr| {
        gid.to_ipv4_mapped().is_none() && !gid.is_unspecified() && !gid.is_unicast_link_local()
    };
    let addr = gids.iter().find_map(Ipv6Addr::to_ipv4_mapped);
    (addr, gids.iter().find(is_v6).copied())
}

/// Runs the command on this machine, once for each host.
pub(crate) fn exec(lab: &Lab, args: &Exec, watch: &Watch) -> Result<u8> {
    let (network, _made) = match offer().context("--native is not possible here")? {
        Some(network) => (network, None),
        None => SoftRoce::make().map(|(network, made)| (network, Some(made)))?,
    };
    // Remove the limit on locked memory, as in a guest. Ignore the error: the call needs a
    // privilege that this process may not have.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let hosts = args.machines.hosts;
    let mut programs = Vec::new();
    for (host, name) in HOSTS.into_iter().enumerate().take(hosts) {
        let results = lab.results(name)?;
        let network = HostNetwork {
            host: name,
            ..network.clone()
        };
        let env = env::vars_os().chain(network.variables(lab, &results));
        let job = Job {
            argv: args.argv(),
            dir: Some(lab.checkout.clone()),
            env: Some(env.chain(args.env.iter().cloned()).collect()),
            has_stdin: false,
        };
        let (report, frames) = channel();
        let report = move |frame| drop(report.send(frame));
        let news = watch.news.clone();
        thread::spawn(move || follow(host, hosts > 1, &frames, &news));
        programs.push(Program::start(&job, kill_with_parent, kill_group, report)?);
    }
    let ended = watch.ended(hosts, args.timeout(), &[]);
    ended.inspect_err(|_| programs.iter().for_each(|program| kill_group(program.id())))
}

/// Kills a command and all descendants that are still in the command's process group.
fn kill_group(leader: Pid) {
    // Ignore the error: the call fails if all processes of the group have already ended.
    let _ = killpg(leader, Signal::SIGKILL);
}

/// A software RDMA device that the lab has created. Dropping this value removes the device.
#[derive(Debug)]
struct SoftRoce;

impl SoftRoce {
    fn make() -> Result<(HostNetwork, Self)> {
        run("modprobe -a rdma_rxe rdma_ucm ib_uverbs")?;
        let network = HostNetwork::new(0, 1, [DEVICE.to_owned()]);
        // Construct the value before creating the device. If the creation fails, dropping the value
        // removes the network device.
        let made = Self;
        device::create(
            DEVICE,
            Driver::Rxe,
            NETDEV,
            (network.devices[0].1, network.addr6),
        )?;
        Ok((network, made))
    }
}

impl Drop for SoftRoce {
    fn drop(&mut self) {
        // When the network device is deleted, the kernel removes the RDMA device on top of it.
        if let Err(error) = run(&format!("ip link del {NETDEV}")) {
            eprintln!("lab: cannot remove the network device {NETDEV}: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_table_yields_usable_addresses() {
        let table = [
            "fe80:0000:0000:0000:5054:00ff:fe12:3456",
            "0000:0000:0000:0000:0000:ffff:0a08:0001",
            "0000:0000:0000:0000:0000:0000:0000:0000",
            "fd08:0000:0000:0000:0000:0000:0000:0001",
        ];
        let (addr, addr6) = usable(&table.map(|gid| gid.parse().unwrap()));
        assert_eq!(addr, Some(Ipv4Addr::new(10, 8, 0, 1)));
        assert_eq!(addr6, Some("fd08::1".parse().unwrap()));
    }
}
