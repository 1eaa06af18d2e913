//! RDMA devices as sysfs shows them, and making one.

use std::{
    fs,
    io::Write,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{driver::Driver, place::Place};

/// How long a new device may take until it can be used.
const DEVICE_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Device {
    port: PathBuf,
    pub(crate) name: String,
}

impl Device {
    pub(crate) fn named(name: &str) -> Self {
        let port = Path::new("/sys/class/infiniband")
            .join(name)
            .join("ports/1");
        Self {
            port,
            name: name.into(),
        }
    }

    /// All devices of this machine.
    pub(crate) fn all() -> Vec<Self> {
        let Ok(entries) = fs::read_dir("/sys/class/infiniband") else {
            return vec![];
        };
        entries
            .flatten()
            .map(|entry| Self::named(&entry.file_name().to_string_lossy()))
            .collect()
    }

    pub(crate) fn is_active(&self) -> bool {
        fs::read_to_string(self.port.join("state")).is_ok_and(|state| state.contains("ACTIVE"))
    }

    /// The addresses that connections can be bound to: a RoCE device lists each as a GID.
    pub(crate) fn addresses(&self) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
        let entries = fs::read_dir(self.port.join("gids"))
            .into_iter()
            .flatten()
            .flatten();
        let gids = entries
            .filter_map(|entry| fs::read_to_string(entry.path()).ok())
            .filter_map(|gid| gid.trim().parse().ok());
        sort_gids(gids)
    }

    /// Makes device `place.device` over `netdev`, gives `netdev` the addresses of
    /// `place`, and waits until connections can be made over it.
    pub(crate) fn create(
        driver: Driver,
        place: &Place,
        netdev: &str,
        dummy: bool,
        mtu: u32,
    ) -> Result<Self> {
        ip_batch(&netdev_script(place, netdev, dummy, mtu))?;
        run(Command::new("rdma").args([
            "link",
            "add",
            &place.device,
            "type",
            &driver.to_string(),
            "netdev",
            netdev,
        ]))?;
        let device = Self::named(&place.device);
        wait_until("the RDMA device to be usable", || {
            let (v4, v6) = device.addresses();
            let listed =
                v4.contains(&place.addr) && place.addr6.is_none_or(|addr6| v6.contains(&addr6));
            device.is_active()
                && (listed || !driver.lists_addresses())
                && Path::new("/dev/infiniband/rdma_cm").exists()
        })?;
        Ok(device)
    }
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!(
            "{name}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Runs many `ip` commands in one process: starting programs is what a guest is slowest at.
pub(crate) fn ip_batch(script: &str) -> Result<()> {
    let mut ip = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run ip")?;
    ip.stdin
        .take()
        .context("ip without stdin")?
        .write_all(script.as_bytes())?;
    let output = ip.wait_with_output()?;
    if !output.status.success() {
        bail!("ip: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn netdev_script(place: &Place, netdev: &str, dummy: bool, mtu: u32) -> String {
    let mut script = String::from("link set lo up\n");
    if dummy {
        script += &format!("link add {netdev} type dummy\n");
    }
    script += &format!("addr add {}/24 dev {netdev}\n", place.addr);
    if let Some(addr6) = place.addr6 {
        script += &format!("addr add {addr6}/64 dev {netdev} nodad\n");
    }
    script + &format!("link set {netdev} mtu {mtu} up\n")
}

fn wait_until(what: &str, done: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + DEVICE_LIMIT;
    while !done() {
        if Instant::now() > deadline {
            bail!(
                "gave up waiting for {what} after {} s",
                DEVICE_LIMIT.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Leaves out empty slots of the table and link-local addresses, which need a scope to be used.
fn sort_gids(gids: impl Iterator<Item = Ipv6Addr>) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    let (mut v4, mut v6) = (vec![], vec![]);
    for gid in gids {
        if let Some(addr) = gid.to_ipv4_mapped() {
            v4.push(addr);
        } else if !gid.is_unspecified() && !gid.is_unicast_link_local() {
            v6.push(gid);
        }
    }
    (v4, v6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_table_yields_usable_addresses() {
        let table = [
            "fe80:0000:0000:0000:5054:00ff:fe12:3456",
            "0000:0000:0000:0000:0000:ffff:0a08:0001",
            "fd08:0000:0000:0000:0000:0000:0000:0001",
            "0000:0000:0000:0000:0000:0000:0000:0000",
        ];
        let (v4, v6) = sort_gids(table.iter().map(|gid| gid.parse().unwrap()));
        assert_eq!(v4, [Ipv4Addr::new(10, 8, 0, 1)]);
        assert_eq!(v6, ["fd08::1".parse::<Ipv6Addr>().unwrap()]);
    }
}
