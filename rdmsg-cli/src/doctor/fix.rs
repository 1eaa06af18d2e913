use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use super::{
    devices,
    interfaces::{self, Interfaces},
    root::Root,
    system,
};

/// Makes a software device if there is none, and prints its commands.
pub(super) fn make_software_device(towards: Option<IpAddr>) -> Result<()> {
    let root = Root::machine();
    let interfaces = Interfaces::read(&root, &interfaces::addresses());
    let devices = devices::read(&root, &interfaces);
    if let Some(device) = devices.first() {
        anstream::eprintln!(
            "--fix: there is an RDMA device, {}: nothing is made",
            device.name
        );
        return Ok(());
    }
    let interface = interfaces.for_software(towards).context(
        "--fix: no network interface is up on which to make a device; `ip link` shows them",
    )?;
    ensure!(
        geteuid().is_root(),
        "--fix: to make a device takes root: sudo rdmsg doctor --fix"
    );
    for line in devices::software_device("rxe0", &interface.name) {
        anstream::eprintln!("+ {line}");
        let words: Vec<&str> = line.split(' ').collect();
        run(&words)?;
    }
    Ok(())
}

fn run(words: &[&str]) -> Result<()> {
    let mut command = system::command(words[0])
        .with_context(|| format!("--fix: no {}: apt install iproute2 kmod", words[0]))?;
    let status = command.args(&words[1..]).status()?;
    ensure!(status.success(), "--fix: {}: {status}", words.join(" "));
    Ok(())
}
