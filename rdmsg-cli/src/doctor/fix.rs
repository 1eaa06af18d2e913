use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use super::{
    devices,
    interfaces::{self, Interfaces},
    root::{Root, command},
};

/// Creates a software device if the host has no RDMA device. Prints each command to stderr before
/// running it.
pub(super) fn make_software_device(towards: Option<IpAddr>) -> Result<()> {
    let root = Root::machine();
    let interfaces = Interfaces::read(&root, &interfaces::addresses());
    let devices = devices::read(&root, &interfaces);
    if let Some(device) = devices.first() {
        eprintln!(
            "--fix: this host has the RDMA device {}, so no device is created",
            device.name
        );
        return Ok(());
    }
    let interface = interfaces
        .for_software(towards)
        .context("--fix: no network interface is up on which to create a device; see `ip link`")?;
    ensure!(
        geteuid().is_root(),
        "--fix: creating a device requires root: sudo rdmsg doctor --fix"
    );
    for line in devices::software_device("rxe0", &interface.name) {
        eprintln!("+ {line}");
        let words: Vec<&str> = line.split(' ').collect();
        run(&words)?;
    }
    Ok(())
}

fn run(words: &[&str]) -> Result<()> {
    let mut command = command(words[0])
        .with_context(|| format!("--fix: {} is missing: apt install iproute2 kmod", words[0]))?;
    let status = command.args(&words[1..]).status()?;
    ensure!(status.success(), "--fix: {}: {status}", words.join(" "));
    Ok(())
}
