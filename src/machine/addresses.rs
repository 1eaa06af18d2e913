use std::{collections::BTreeSet, fs, net::IpAddr, path::Path};

use nix::ifaddrs::getifaddrs;

/// Returns the addresses of this machine's network interfaces that have an RDMA device.
///
/// Link-local addresses are left out.
pub(crate) fn rdma_addresses() -> Vec<IpAddr> {
    let interfaces = interfaces(Path::new("/sys/class/infiniband"));
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

/// Returns the network interfaces of all devices.
///
/// They are those of the ports' GIDs, and those on which a software device was created.
fn interfaces(devices: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for device in entries(devices) {
        for port in entries(&device.join("ports")) {
            // An entry without a GID cannot be read.
            let of_gids = entries(&port.join("gid_attrs/ndevs"));
            names.extend(of_gids.iter().filter_map(|file| name_in(file)));
        }
        names.extend(name_in(&device.join("parent")));
        let on_card = entries(&device.join("device/net"));
        names.extend(on_card.iter().filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            Some(name.to_owned())
        }));
    }
    names
}

fn name_in(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the content of a folder, empty if it does not exist.
fn entries(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::testing::Root, *};

    #[test]
    fn a_devices_interfaces_are_those_of_its_gids_and_of_its_card() {
        let sys = Root::new();
        assert!(interfaces(&sys.path().join("missing")).is_empty());
        sys.write("rxe0/parent", "eth0\n");
        sys.write("mlx5_0/ports/1/gid_attrs/ndevs/0", "ens1\n");
        sys.write("mlx5_0/ports/1/gid_attrs/ndevs/1", "ens1.100\n");
        sys.write("mlx5_0/ports/2/gid_attrs/ndevs/0", "ens2\n");
        sys.write("mlx4_0/device/net/ib0/mtu", "2044\n");
        let names: Vec<_> = interfaces(sys.path()).into_iter().collect();
        assert_eq!(names, ["ens1", "ens1.100", "ens2", "eth0", "ib0"]);
    }
}
