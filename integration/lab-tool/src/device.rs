//! Reads the properties of RDMA devices from sysfs, and creates RDMA devices.

use std::{
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use hosts::Host;

use crate::host_network::Driver;

/// The time limit for a new device to become active.
const DEVICE_LIMIT: Duration = Duration::from_secs(30);

/// The MTU of the network devices in bytes. It is large enough for an RDMA MTU of 4096 bytes.
pub(crate) const MTU: u32 = 4200;

const DEVICES: &str = "/sys/class/infiniband";

/// Returns the names of this machine's RDMA devices.
pub(crate) fn all() -> Vec<String> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}

pub(crate) fn is_active(device: &str) -> bool {
    let state = fs::read_to_string(format!("{DEVICES}/{device}/ports/1/state"));
    state.is_ok_and(|state| state.contains("ACTIVE"))
}

/// Returns the GIDs of a device. A RoCE device has one GID per address of its network device.
pub(crate) fn gids(device: &str) -> Vec<Ipv6Addr> {
    let entries = fs::read_dir(format!("{DEVICES}/{device}/ports/1/gids"));
    let entries = entries.into_iter().flatten().flatten();
    let gids = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    gids.filter_map(|gid| gid.trim().parse().ok()).collect()
}

/// Creates an RDMA device on the network device `netdev`, and waits until the RDMA device is
/// active. Assigns the addresses to `netdev`. If `netdev` does not exist, creates it as a dummy
/// device.
pub(crate) fn create(
    name: &str,
    driver: Driver,
    netdev: &str,
    (addr, addr6): (Ipv4Addr, Option<Ipv6Addr>),
) -> Result<()> {
    let add6 = addr6.map(|addr6| format!("echo addr add {addr6}/64 dev {netdev} nodad;"));
    // Run all `ip` commands in one process, because starting a program is slow in a guest.
    let script = format!(
        "{{ echo link set lo up
            [ -e /sys/class/net/{netdev} ] || echo link add {netdev} type dummy
            echo addr add {addr}/24 dev {netdev}; {}
            echo link set {netdev} mtu {MTU} up; }} | ip -batch - &&
            rdma link add {name} type {} netdev {netdev}",
        add6.unwrap_or_default(),
        driver.name()
    );
    run(&script)?;
    let needed: Vec<_> = [addr.to_ipv6_mapped()].into_iter().chain(addr6).collect();
    let deadline = Instant::now() + DEVICE_LIMIT;
    loop {
        let gids = gids(name);
        // The GIDs of software iWARP contain no addresses.
        let is_listed = driver == Driver::Siw || needed.iter().all(|gid| gids.contains(gid));
        if is_listed && is_active(name) && Path::new("/dev/infiniband/rdma_cm").exists() {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{name} did not become active within {DEVICE_LIMIT:?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a shell command on this host, and returns an error if it fails.
pub(crate) fn run(script: &str) -> Result<()> {
    Host::here().shell(script).map(drop)
}
