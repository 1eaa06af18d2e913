use std::{net::IpAddr, time::Duration};

use nix::sys::utsname::uname;
use serde::{Deserialize, Serialize};

use super::{
    adapters,
    devices::{self, Device},
    exchange,
    files::DeviceFiles,
    finding::Finding,
    firewall::Firewall,
    hardware::{self, Hardware},
    interfaces::{self, Interfaces},
    kernel::Kernel,
    libraries::Libraries,
    limits::Limits,
    root::Root,
    route::Route,
    surroundings::Surroundings,
};

/// A network interface and its RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(super) device: String,
    pub(super) interface: String,
    pub(super) mtu: u64,
    /// Whether the device implements iWARP, which runs over TCP.
    #[serde(default)]
    pub(super) is_iwarp: bool,
    /// The maximum payload of an RDMA packet in bytes.
    pub(super) rdma_mtu: u64,
    pub(super) addresses: Vec<IpAddr>,
}

/// All findings about a host. On request, `rdmsg serve` sends the examination of the host on which
/// it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Examination {
    /// The version of this program.
    pub(crate) version: String,
    pub(crate) host: String,
    pub(crate) kernel: String,
    #[serde(default)]
    pub(crate) hardware: Vec<Hardware>,
    pub(super) links: Vec<Link>,
    /// The entries of the GID tables as text, one line each.
    #[serde(default)]
    pub(super) gids: Vec<String>,
    pub(crate) findings: Vec<Finding>,
}

impl Examination {
    /// Examines this host. `towards` is the local address of the route to the peer. If `exchange`
    /// is `Some`, also sends messages from this host to itself: over each device, or over TCP if
    /// there is no device. The value of `exchange` is the time limit.
    pub(crate) fn of_this_host(towards: Option<IpAddr>, exchange: Option<Duration>) -> Self {
        let root = Root::machine();
        let around = Surroundings::read(&root);
        let kernel = Kernel::read(&root);
        let files = DeviceFiles::read(&root);
        let interfaces = Interfaces::read(&root, &interfaces::addresses());
        let devices = devices::read(&root, &interfaces);

        let mut findings = Vec::new();
        findings.extend(around.judge());
        findings.push(kernel.judge(&around));
        findings.extend(files.judge(&around));
        if devices.is_empty() {
            let missing = devices::judge_none(&kernel, &around, &interfaces, towards);
            findings.extend(missing);
        }
        let of_devices = devices.iter().flat_map(|device| device.judge(&interfaces));
        findings.extend(of_devices);
        findings.extend(adapters::judge(&root, &devices));
        findings.extend(judge_ecn(&root, &devices));
        findings.extend(Limits::read(&root).judge(&around));
        findings.extend(Firewall::read(&root).judge(&devices, &around));
        let usable = kernel.is_ready() && files.are_usable();
        if usable {
            findings.extend(Libraries::read().judge(&devices, &around));
        }
        if let Some(timeout) = exchange.filter(|_| usable) {
            findings.extend(exchange::over_each(&devices, timeout));
        }
        if let Some(timeout) = exchange.filter(|_| devices.is_empty()) {
            findings.push(exchange::over_tcp(timeout).hint(
                "services use TCP unless they require RDMA; `rdmsg doctor --transport tcp` checks \
                 only TCP",
            ));
        }
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            host: host_name(),
            kernel: kernel.release().into(),
            hardware: hardware::read(&root, &devices, &interfaces),
            links: links(&devices, &interfaces),
            gids: devices.iter().flat_map(Device::gids).collect(),
            findings,
        }
    }

    /// Examines this host for connections over TCP only. `timeout` is the time limit of the
    /// messages that the host sends to itself.
    pub(super) fn for_tcp(timeout: Duration) -> Self {
        let root = Root::machine();
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            host: host_name(),
            kernel: Kernel::read(&root).release().into(),
            hardware: Vec::new(),
            links: Vec::new(),
            gids: Vec::new(),
            findings: vec![
                Limits::read(&root).judge_files(),
                exchange::over_tcp(timeout),
            ],
        }
    }

    /// Updates the links of this host, and checks the route to the peer. `rdmsg doctor` on the peer
    /// compares these links with the peer's own links.
    pub(crate) fn look_towards(&mut self, peer: IpAddr) {
        let root = Root::machine();
        let interfaces = Interfaces::read(&root, &interfaces::addresses());
        self.links = links(&devices::read(&root, &interfaces), &interfaces);
        if let Ok(route) = Route::to(peer)
            && let Some(link) = self.link_of(route.local)
        {
            let finding = route.judge_mtu(peer, link);
            self.findings.extend(finding);
        }
    }

    pub(crate) fn to_json(&self) -> String {
        // The serialization cannot fail, because all keys are strings.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the link with this IP address.
    pub(super) fn link_of(&self, address: IpAddr) -> Option<&Link> {
        let has = |link: &&Link| link.addresses.contains(&address);
        self.links.iter().find(has)
    }
}

fn links(devices: &[Device], interfaces: &Interfaces) -> Vec<Link> {
    let mut links = Vec::new();
    for device in devices {
        let usable = device.addresses();
        for interface in device.interfaces() {
            let Some(interface) = interfaces.named(interface) else {
                continue;
            };
            let addresses = interface.addresses.iter().copied();
            links.push(Link {
                device: device.name.clone(),
                interface: interface.name.clone(),
                is_iwarp: device.is_iwarp,
                mtu: interface.mtu,
                rdma_mtu: interface.rdma_mtu(),
                addresses: addresses.filter(|it| usable.contains(it)).collect(),
            });
        }
    }
    links
}

/// Checks for each adapter whether it reduces its rate when switches mark packets (ECN). Skips
/// adapters whose driver does not report this setting.
fn judge_ecn(root: &Root, devices: &[Device]) -> Vec<Finding> {
    let interfaces = devices.iter().flat_map(Device::interfaces);
    let of_adapters = interfaces.filter_map(|name| {
        let at = format!("sys/class/net/{name}/ecn/roce_rp/enable");
        let priorities = root.names(&at);
        let on = |priority: &&String| root.number(format!("{at}/{priority}")) == Some(1);
        let on: Vec<&str> = priorities.iter().filter(on).map(String::as_str).collect();
        if priorities.is_empty() {
            return None;
        }
        if !on.is_empty() {
            let what = format!(
                "{name} reacts to marks (ECN) at priorities {}",
                on.join(", ")
            );
            return Some(Finding::ok("ecn", what));
        }
        let finding = Finding::note("ecn", format!("{name} ignores the marks of switches (ECN)"))
            .because("it does not slow down when the network is congested, so packets are lost")
            .hint(format!(
                "`dcb pfc show dev {name}` shows whether pause frames (PFC) are enabled"
            ));
        Some(finding)
    });
    of_adapters.collect()
}

fn host_name() -> String {
    let name = uname().ok();
    let name = name.and_then(|name| name.nodename().to_str().map(str::to_owned));
    name.unwrap_or_else(|| "this host".into())
}

#[cfg(test)]
mod tests {
    use super::{super::root::testing::Machine, *};

    #[test]
    fn an_examination_travels() {
        let here = Examination::of_this_host(None, None);
        assert!(!here.findings.is_empty());
        let text = serde_json::to_string(&here).unwrap();
        let there: Examination = serde_json::from_str(&text).unwrap();
        assert_eq!(there.findings, here.findings);
        assert_eq!(there.links, here.links);
    }

    #[test]
    fn congestion_marks_are_read_if_driver_counts_them() {
        let at = "sys/class/net/ens1/ecn/roce_rp/enable";
        let machine = Machine::new()
            .file("sys/class/infiniband/mlx5_0/parent", "ens1\n")
            .file(&format!("{at}/0"), "0\n")
            .file(&format!("{at}/3"), "1\n");
        let judged = |machine: &Machine| {
            let root = machine.root();
            judge_ecn(&root, &devices::read(&root, &Interfaces::default()))
                .remove(0)
                .what
        };
        assert!(judged(&machine).ends_with("at priorities 3"));
        let off = machine.file(&format!("{at}/3"), "0\n");
        assert!(judged(&off).contains("ignores the marks"));
    }
}
