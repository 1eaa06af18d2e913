use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
};

use nix::ifaddrs::getifaddrs;

/// Returns the addresses of those network interfaces of this machine that have an RDMA device.
///
/// The list contains no link-local addresses.
pub(crate) fn rdma_addresses() -> Vec<IpAddr> {
    let class = Path::new("/sys/class");
    let interfaces = interfaces(&class.join("infiniband"), &class.join("net"));
    let Ok(all) = getifaddrs() else {
        return Vec::new();
    };
    let addresses: BTreeSet<IpAddr> = all
        .filter(|interface| interfaces.contains(&interface.interface_name))
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    addresses.into_iter().collect()
}

/// Returns whether this machine has an RDMA device.
pub(crate) fn has_rdma_device() -> bool {
    !entries(Path::new("/sys/class/infiniband")).is_empty()
}

/// Returns the names of the network interfaces of all RDMA devices.
///
/// These are the interfaces to which the GIDs of ports refer, the interfaces on which software
/// devices were created, and the interfaces of the devices' cards. The GID of an iWARP port refers
/// to no interface, but contains the hardware address of an interface.
fn interfaces(devices: &Path, nets: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for device in entries(devices) {
        for port in entries(&device.join("ports")) {
            // Each port has a table of GIDs. Empty entries of the table are skipped, because
            // reading their files fails.
            let of_gids = entries(&port.join("gid_attrs/ndevs"));
            names.extend(of_gids.iter().filter_map(|file| name_in(file)));
            if let Some(hardware) = name_in(&port.join("gids/0")).and_then(|gid| eui_48(&gid)) {
                let same =
                    |net: &PathBuf| name_in(&net.join("address")).is_some_and(|is| is == hardware);
                let nets = entries(nets).into_iter().filter(same);
                names.extend(nets.filter_map(|net| file_name(&net)));
            }
        }
        names.extend(name_in(&device.join("parent")));
        let on_card = entries(&device.join("device/net"));
        names.extend(on_card.iter().filter_map(|path| file_name(path)));
    }
    names
}

/// Returns the hardware address that a GID contains, formatted as in sysfs; `None` if the GID
/// contains no hardware address.
fn eui_48(gid: &str) -> Option<String> {
    let bytes = gid.parse::<Ipv6Addr>().ok()?.octets();
    let (address, rest) = bytes.split_at(6);
    let is_address = rest.iter().all(|byte| *byte == 0) && address.iter().any(|byte| *byte != 0);
    is_address.then(|| {
        let bytes: Vec<_> = address.iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(":")
    })
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

fn name_in(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the paths in a folder, or an empty list if the folder cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::testing::Root, *};

    #[test]
    fn device_interfaces_come_from_gids_and_card() {
        let sys = Root::new();
        let net = Root::new();
        let interfaces = |devices: &Path| interfaces(devices, net.path());
        assert!(interfaces(&sys.path().join("missing")).is_empty());
        sys.write("rxe0/parent", "eth0\n");
        sys.write("mlx5_0/ports/1/gid_attrs/ndevs/0", "ens1\n");
        sys.write("mlx5_0/ports/1/gid_attrs/ndevs/1", "ens1.100\n");
        sys.write("mlx5_0/ports/2/gid_attrs/ndevs/0", "ens2\n");
        sys.write("mlx4_0/device/net/ib0/mtu", "2044\n");
        sys.write(
            "siw0/ports/1/gids/0",
            "5254:0012:34ab:0000:0000:0000:0000:0000\n",
        );
        sys.write(
            "siw1/ports/1/gids/0",
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
        );
        net.write("eth1/address", "52:54:00:12:34:ab\n");
        net.write("lo/address", "00:00:00:00:00:00\n");
        let names: Vec<_> = interfaces(sys.path()).into_iter().collect();
        assert_eq!(names, ["ens1", "ens1.100", "ens2", "eth0", "eth1", "ib0"]);
    }
}
