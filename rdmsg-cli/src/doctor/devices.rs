use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr},
};

use super::{
    adapters,
    finding::{Finding, as_root},
    interfaces::{Interface, Interfaces},
    kernel::Kernel,
    root::Root,
    surroundings::Surroundings,
};

/// The driver counters of lost and late packets.
const LOSSES: [&str; 6] = [
    "packet_seq_err",
    "out_of_sequence",
    "local_ack_timeout_err",
    "out_of_seq_request",
    "rcvd_seq_err",
    "retry_exceeded_err",
];

/// The lowest rate in Gb/s at which small packets may limit the bandwidth of an adapter.
const FAST: u64 = 40;

/// An RDMA device, read from sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) name: String,
    /// Whether the device implements iWARP. An iWARP device sends data over TCP connections, and
    /// uses neither RoCE packets nor the RoCE UDP port.
    pub(super) is_iwarp: bool,
    /// The network interface of a software device. `None` for an adapter, or if the driver does not
    /// report the interface.
    made_on: Option<String>,
    is_software: bool,
    ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Port {
    number: String,
    /// The state in the format of sysfs, for example `4: ACTIVE`.
    state: String,
    /// The link layer in the format of sysfs: `Ethernet` or `InfiniBand`.
    link_layer: String,
    gids: Vec<Gid>,
    /// The IP addresses that connections can use.
    addresses: BTreeSet<IpAddr>,
    /// The rate in Gb/s, or 0 if it is unknown.
    rate: u64,
    losses: u64,
}

/// An entry of the GID table: a source address of the port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gid {
    index: String,
    gid: Ipv6Addr,
    /// The type in the format of sysfs: `RoCE v2`, `IB/RoCE v1` or `iWARP`.
    kind: String,
    interface: Option<String>,
}

/// Reads all RDMA devices of the host.
pub(super) fn read(root: &Root, interfaces: &Interfaces) -> Vec<Device> {
    let names = root.names("sys/class/infiniband");
    names
        .into_iter()
        .map(|name| Device::read(root, interfaces, name))
        .collect()
}

impl Device {
    fn read(root: &Root, interfaces: &Interfaces, name: String) -> Self {
        let at = format!("sys/class/infiniband/{name}");
        let is_iwarp = root.text(format!("{at}/node_type")).as_deref() == Some("4: RNIC");
        let read = |number| {
            let at = format!("{at}/ports/{number}");
            let port = Port::read(root, &at, number);
            if is_iwarp {
                port.of_iwarp(interfaces)
            } else {
                port
            }
        };
        let ports = root.names(format!("{at}/ports"));
        Self {
            is_iwarp,
            made_on: root.text(format!("{at}/parent")),
            // In sysfs, only an adapter has the symbolic link `device`, which points to its device
            // on a bus.
            is_software: !root.has(format!("{at}/device")),
            ports: ports.into_iter().map(read).collect(),
            name,
        }
    }

    /// Returns true if the device is implemented in software. The packets of such a device pass
    /// through the host's network stack.
    pub(super) fn is_software(&self) -> bool {
        self.is_software
    }

    /// Returns the name of the protocol that the device implements.
    pub(super) fn protocol(&self) -> &'static str {
        let is_infiniband = |port: &Port| port.link_layer == "InfiniBand";
        if self.is_iwarp {
            "iWARP"
        } else if self.ports.iter().any(is_infiniband) {
            "InfiniBand"
        } else {
            "RoCE"
        }
    }

    /// Returns the rate of the fastest port in Gb/s, or `None` if it is unknown.
    pub(super) fn rate(&self) -> Option<u64> {
        let rates = self.ports.iter().map(|port| port.rate);
        rates.max().filter(|rate| *rate > 0)
    }

    /// Returns the names of the device's network interfaces.
    pub(super) fn interfaces(&self) -> BTreeSet<&str> {
        let gids = self.ports.iter().flat_map(|port| &port.gids);
        let of_gids = gids.filter_map(|gid| gid.interface.as_deref());
        of_gids.chain(self.made_on.as_deref()).collect()
    }

    /// Returns the IP addresses that connections can use. Only active ports are included.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let ports = self.ports.iter().filter(|port| port.is_active());
        let all: BTreeSet<IpAddr> = ports.flat_map(|port| &port.addresses).copied().collect();
        all.into_iter().collect()
    }

    pub(super) fn judge(&self, interfaces: &Interfaces) -> Vec<Finding> {
        let mut findings = Vec::new();
        for port in &self.ports {
            findings.extend(self.judge_port(port, interfaces));
        }
        findings
    }

    fn judge_port(&self, port: &Port, interfaces: &Interfaces) -> Vec<Finding> {
        let name = format!("{} port {}", self.name, port.number);
        let names = self.interfaces();
        let interface = names.iter().find_map(|name| interfaces.named(name));
        if !port.is_active() {
            return vec![port.judge_state(&name, interface)];
        }
        if port.link_layer != "Ethernet" {
            let what = format!("{name} is active ({})", port.link_layer);
            return vec![Finding::ok("port", what)];
        }
        let Some(interface) = interface else {
            let what = format!("{name} has no network interface in this network namespace");
            let why = "a connection uses the IP address of a network interface";
            let look = "`rdma link` shows the interface; move it or the device to this namespace";
            return vec![Finding::error("port", what).because(why).hint(look)];
        };
        if port.addresses.is_empty() {
            let [a, b, c] = interfaces.free_network();
            let on = &interface.name;
            let command = format!("ip address add {a}.{b}.{c}.1/24 dev {on}");
            let finding = Finding::error("address", format!("{name}: {on} has no address"))
                .because("a connection uses the IP address of the network interface")
                .command(as_root(&command))
                .hint(format!(
                    "any free address of your network will do; the hosts must be in one network, \
                     for example {a}.{b}.{c}.2 on the second host"
                ));
            return vec![finding];
        }
        let kinds: BTreeSet<&str> = port.gids.iter().map(|gid| &*gid.kind).collect();
        let list: Vec<String> = port.addresses.iter().map(ToString::to_string).collect();
        let what = format!(
            "{name} is active on {}{}: {}, {}",
            interface.name,
            if self.is_software() {
                ", in software"
            } else {
                ""
            },
            list.join(", "),
            kinds.into_iter().collect::<Vec<_>>().join(" and "),
        );
        let mut findings = vec![Finding::ok("port", what)];
        if !self.is_iwarp {
            let is_fast = !self.is_software() && port.rate >= FAST;
            findings.push(judge_mtu(interface, is_fast));
        }
        if !self.is_iwarp && !port.gids.iter().any(|gid| gid.kind == "RoCE v2") {
            let what = format!("{name} has addresses for RoCE v1 only");
            let finding = Finding::warning("gid", what).because(
                "routers do not forward packets of version 1, and hosts with different versions \
                 cannot communicate",
            );
            let look = format!("the GIDs are in /sys/class/infiniband/{}/ports", self.name);
            findings.push(finding.hint(look));
        }
        if port.losses > 0 {
            let what = format!(
                "{name} has counted {} packets that were lost or late since its creation",
                port.losses
            );
            let finding = Finding::note("losses", what)
                .because("each such packet delays a connection by milliseconds")
                .hint(format!(
                    "`rdma statistic show link {}/{}` twice shows whether the number grows",
                    self.name, port.number
                ));
            findings.push(finding);
        }
        findings
    }

    /// Returns the entries of the GID tables as text, one line each.
    pub(super) fn gids(&self) -> impl Iterator<Item = String> {
        let ports = self.ports.iter();
        ports.flat_map(move |port| {
            port.gids.iter().map(move |gid| {
                let interface = gid.interface.as_deref().unwrap_or("?");
                format!(
                    "{} port {} GID {}: {} ({}) on {interface}",
                    self.name, port.number, gid.index, gid.gid, gid.kind
                )
            })
        })
    }
}

impl Port {
    fn read(root: &Root, at: &str, number: String) -> Self {
        let gids = root.names(format!("{at}/gids"));
        let losses = LOSSES.map(|name| root.number(format!("{at}/hw_counters/{name}")));
        let gids: Vec<_> = gids
            .into_iter()
            .filter_map(|index| Gid::read(root, at, index))
            .collect();
        Self {
            number,
            addresses: gids.iter().filter_map(Gid::address).collect(),
            state: root.text(format!("{at}/state")).unwrap_or_default(),
            link_layer: root.text(format!("{at}/link_layer")).unwrap_or_default(),
            gids,
            rate: root
                .text(format!("{at}/rate"))
                .map_or(0, |rate| gigabits(&rate)),
            losses: losses.into_iter().flatten().sum(),
        }
    }

    /// Corrects the GIDs and addresses of an iWARP port. The first six bytes of such a port's GID
    /// are the hardware address of its network interface. Connections can use all IP addresses of
    /// this interface.
    fn of_iwarp(mut self, interfaces: &Interfaces) -> Self {
        self.addresses.clear();
        for gid in &mut self.gids {
            "iWARP".clone_into(&mut gid.kind);
            let [a, b, c, d, e, f, ..] = gid.gid.octets();
            let interface = interfaces.with_hardware([a, b, c, d, e, f]);
            gid.interface = interface.map(|interface| interface.name.clone());
            let addresses = interface.into_iter().flat_map(|it| &it.addresses);
            self.addresses.extend(addresses);
        }
        self
    }

    fn is_active(&self) -> bool {
        self.state.contains("ACTIVE")
    }

    fn judge_state(&self, name: &str, interface: Option<&Interface>) -> Finding {
        let state = self.state.split(": ").last().unwrap_or("unknown");
        let finding = Finding::error("port", format!("{name} is {state}"))
            .because("a port that is not active sends and receives nothing");
        if self.link_layer == "InfiniBand" {
            return match state {
                "INIT" => finding
                    .command(as_root("systemctl start opensm"))
                    .hint("on one host of the network, unless a switch runs a subnet manager"),
                _ => finding.hint("check the cable and its other end; `ibstat` shows the state"),
            };
        }
        match interface {
            Some(Interface {
                name, is_up: false, ..
            }) => finding.command(as_root(&format!("ip link set {name} up"))),
            Some(Interface { name, .. }) => finding.hint(format!(
                "{name} has no carrier: check the cable and its other end; `ip link show {name}` \
                 shows the state"
            )),
            None => finding.hint("its network interface is not in this network namespace"),
        }
    }
}

impl Gid {
    /// Reads an entry of the GID table. Returns `None` if the entry is empty.
    fn read(root: &Root, port: &str, index: String) -> Option<Self> {
        let gid: Ipv6Addr = root.text(format!("{port}/gids/{index}"))?.parse().ok()?;
        let kind = root.text(format!("{port}/gid_attrs/types/{index}"));
        (!gid.is_unspecified()).then(|| Self {
            gid,
            kind: kind.unwrap_or_default(),
            interface: root.text(format!("{port}/gid_attrs/ndevs/{index}")),
            index,
        })
    }

    /// Returns the IP address of this entry, or `None` if the address is link-local.
    fn address(&self) -> Option<IpAddr> {
        let address = match self.gid.to_ipv4_mapped() {
            Some(v4) => v4.into(),
            None => self.gid.into(),
        };
        (!self.gid.is_unicast_link_local()).then_some(address)
    }
}

/// Parses a rate such as `100 Gb/sec (4X EDR)`. Returns the rate in Gb/s, or 0 if the text does not
/// begin with a number.
fn gigabits(rate: &str) -> u64 {
    let number = rate
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok());
    number.map_or(0, |number: f64| number as u64)
}

fn judge_mtu(interface: &Interface, is_fast: bool) -> Finding {
    let (name, mtu, rdma) = (&interface.name, interface.mtu, interface.rdma_mtu());
    let what = format!("RDMA packets carry {rdma} bytes, because the MTU of {name} is {mtu}");
    if rdma == 4096 {
        return Finding::ok("mtu", what);
    }
    let (finding, why) = if is_fast && rdma <= 1024 {
        let why = "messages need at least four times as many packets as with 4096 bytes, so an \
                   adapter of this rate may not reach its full bandwidth";
        (Finding::warning("mtu", what), why)
    } else {
        let why = "packets of 4096 bytes need less work per byte";
        (Finding::note("mtu", what), why)
    };
    finding
        .because(why)
        .command(as_root(&format!("ip link set {name} mtu 4200")))
        .hint("do this on all hosts, and only if the switches forward such packets")
}

/// Returns the finding for a host without an RDMA device. Returns `None` if the kernel lacks
/// modules, because the finding about the kernel already states this cause.
pub(super) fn judge_none(
    kernel: &Kernel,
    around: &Surroundings,
    interfaces: &Interfaces,
    towards: Option<IpAddr>,
) -> Option<Finding> {
    (!kernel.lacks_modules()).then(|| judge_missing(kernel, around, interfaces, towards))
}

fn judge_missing(
    kernel: &Kernel,
    around: &Surroundings,
    interfaces: &Interfaces,
    towards: Option<IpAddr>,
) -> Finding {
    let finding = Finding::error("device", "there is no RDMA device");
    let adapter = interfaces.iter().find_map(|interface| {
        let driver = interface.driver.as_deref()?;
        let module = adapters::rdma_module(driver)?;
        Some((interface, module))
    });
    if let Some((interface, module)) = adapter {
        let why = format!(
            "the network adapter of {} may support RDMA, but its RDMA driver is not loaded",
            interface.name
        );
        return finding
            .because(why)
            .command(as_root(&format!("modprobe {module}")));
    }
    let finding = finding.because(
        "rdmsg uses TCP then. Software RoCE (rxe) adds an RDMA device to any network interface. \
         Programs use it like an adapter, and its packets are the same, but it is slower",
    );
    if kernel.lacks_rxe() {
        let release = kernel.release();
        return finding.hint(format!(
            "kernel {release} does not contain the module rdma_rxe"
        ));
    }
    match interfaces.for_software(towards) {
        Some(interface) if around.is_container() => finding
            .commands(software_device("rxe0", &interface.name))
            .hint("this is a container: run the commands on its host, as root, for its interface"),
        Some(interface) => finding
            .commands(software_device("rxe0", &interface.name).map(|line| as_root(&line)))
            .hint("`rdmsg doctor --fix` runs these commands"),
        None => finding.hint("no network interface is up: `ip link` shows them"),
    }
}

/// Returns the commands that create a software device.
pub(super) fn software_device(name: &str, interface: &str) -> [String; 2] {
    [
        "modprobe -a rdma_rxe rdma_ucm ib_uverbs".into(),
        format!("rdma link add {name} type rxe netdev {interface}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::{
        super::{distribution::Distribution, finding::State, root::testing::Machine},
        *,
    };

    const PORT: &str = "sys/class/infiniband/rxe0/ports/1";

    /// Returns a host with a software device on eth0. The device has one GID, which is link-local.
    fn machine(state: &str, mtu: &str) -> Machine {
        Machine::new()
            .file("sys/class/infiniband/rxe0/parent", "eth0\n")
            .file(&format!("{PORT}/state"), state)
            .file(&format!("{PORT}/link_layer"), "Ethernet\n")
            .file(&format!("{PORT}/hw_counters/rcvd_seq_err"), "0\n")
            .file(
                &format!("{PORT}/gids/0"),
                "fe80:0000:0000:0000:5054:00ff:fe12:3456\n",
            )
            .file(&format!("{PORT}/gid_attrs/types/0"), "RoCE v2\n")
            .file(&format!("{PORT}/gid_attrs/ndevs/0"), "eth0\n")
            .file(
                &format!("{PORT}/gids/3"),
                "0000:0000:0000:0000:0000:0000:0000:0000\n",
            )
            .file("sys/class/net/eth0/mtu", mtu)
    }

    fn judged(machine: &Machine) -> Vec<Finding> {
        let root = machine.root();
        let interfaces = Interfaces::read(&root, &[]);
        read(&root, &interfaces)[0].judge(&interfaces)
    }

    fn subjects(findings: &[Finding]) -> Vec<(&str, State)> {
        findings
            .iter()
            .map(|finding| (&*finding.subject, finding.state))
            .collect()
    }

    #[test]
    fn a_port_with_addresses_is_fine() {
        let machine = machine("4: ACTIVE\n", "4200\n")
            .file("sys/class/net/eth0/flags", "0x1003\n")
            .file(
                &format!("{PORT}/gids/1"),
                "0000:0000:0000:0000:0000:ffff:0a08:0001\n",
            )
            .file(&format!("{PORT}/gid_attrs/types/1"), "RoCE v2\n")
            .file(&format!("{PORT}/gid_attrs/ndevs/1"), "eth0\n");
        let findings = judged(&machine);
        assert_eq!(
            subjects(&findings),
            [("port", State::Ok), ("mtu", State::Ok)]
        );
        assert!(
            findings[0].what.contains("10.8.0.1"),
            "{}",
            findings[0].what
        );
        let devices = read(&machine.root(), &Interfaces::default());
        assert_eq!(
            devices[0].addresses(),
            ["10.8.0.1".parse::<IpAddr>().unwrap()]
        );
        assert!(devices[0].is_software());
        assert_eq!(
            devices[0].gids().count(),
            2,
            "the empty entry must be omitted"
        );
    }

    #[test]
    fn iwarp_port_has_addresses_of_interface_by_mac() {
        let port = "sys/class/infiniband/siw0/ports/1";
        let machine = Machine::new()
            .file("sys/class/infiniband/siw0/node_type", "4: RNIC\n")
            .file(&format!("{port}/state"), "4: ACTIVE\n")
            .file(&format!("{port}/link_layer"), "Ethernet\n")
            .file(
                &format!("{port}/gids/0"),
                "9ef1:5c59:c4c7:0000:0000:0000:0000:0000\n",
            )
            .file(&format!("{port}/gid_attrs/types/0"), "IB/RoCE v1\n")
            .file("sys/class/net/eth0/flags", "0x1003\n")
            .file("sys/class/net/eth0/address", "52:54:00:12:34:56\n")
            .file("sys/class/net/eth1/flags", "0x1003\n")
            .file("sys/class/net/eth1/mtu", "1500\n")
            .file("sys/class/net/eth1/address", "9e:f1:5c:59:c4:c7\n");
        let root = machine.root();
        let address: IpAddr = "10.9.0.1".parse().unwrap();
        let interfaces = Interfaces::read(&root, &[("eth1".to_owned(), address)]);
        let device = &read(&root, &interfaces)[0];
        assert_eq!(device.addresses(), [address]);
        assert_eq!(device.interfaces(), BTreeSet::from(["eth1"]));
        let findings = device.judge(&interfaces);
        assert_eq!(
            subjects(&findings),
            [("port", State::Ok)],
            "a finding about RoCE must not be reported for iWARP"
        );
        assert!(
            findings[0]
                .what
                .ends_with("eth1, in software: 10.9.0.1, iWARP")
        );
    }

    #[test]
    fn port_without_address_gets_one_of_free_network() {
        let machine = machine("4: ACTIVE\n", "1500\n").file("sys/class/net/eth0/flags", "0x1003\n");
        let findings = judged(&machine);
        assert_eq!(subjects(&findings), [("address", State::Error)]);
        let command = as_root("ip address add 10.77.0.1/24 dev eth0");
        assert_eq!(findings[0].commands, [command]);
    }

    #[test]
    fn port_is_down_with_interface_or_without_cable() {
        let down = machine("1: DOWN\n", "1500\n").file("sys/class/net/eth0/flags", "0x1002\n");
        let findings = judged(&down);
        assert_eq!(subjects(&findings), [("port", State::Error)]);
        assert_eq!(findings[0].commands, [as_root("ip link set eth0 up")]);
        let unplugged = down.file("sys/class/net/eth0/flags", "0x1003\n");
        let findings = judged(&unplugged);
        assert!(findings[0].commands.is_empty());
        assert!(findings[0].hint.as_ref().unwrap().contains("carrier"));
    }

    #[test]
    fn a_small_mtu_and_losses_are_noted() {
        let machine = machine("4: ACTIVE\n", "1500\n")
            .file("sys/class/net/eth0/flags", "0x1003\n")
            .file(
                &format!("{PORT}/gids/1"),
                "0000:0000:0000:0000:0000:ffff:0a08:0001\n",
            )
            .file(&format!("{PORT}/gid_attrs/types/1"), "IB/RoCE v1\n")
            .file(&format!("{PORT}/gid_attrs/types/0"), "IB/RoCE v1\n")
            .file(&format!("{PORT}/hw_counters/rcvd_seq_err"), "7\n");
        let findings = judged(&machine);
        let expected = [
            ("port", State::Ok),
            ("mtu", State::Note),
            ("gid", State::Warning),
            ("losses", State::Note),
        ];
        assert_eq!(subjects(&findings), expected);
        assert!(findings[3].what.contains(" 7 "));
    }

    #[test]
    fn small_mtu_on_a_fast_adapter_is_a_warning() {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        let judged = |rate: &str, mtu: &str| {
            let machine = Machine::new()
                .file(&format!("{port}/state"), "4: ACTIVE\n")
                .file(&format!("{port}/link_layer"), "Ethernet\n")
                .file(&format!("{port}/rate"), rate)
                .file("sys/class/infiniband/mlx5_0/device/vendor", "0x15b3\n")
                .file(
                    &format!("{port}/gids/1"),
                    "0000:0000:0000:0000:0000:ffff:0a08:0001\n",
                )
                .file(&format!("{port}/gid_attrs/types/1"), "RoCE v2\n")
                .file(&format!("{port}/gid_attrs/ndevs/1"), "eth0\n")
                .file("sys/class/net/eth0/flags", "0x1003\n")
                .file("sys/class/net/eth0/mtu", mtu);
            judged(&machine)[1].state
        };
        assert_eq!(judged("100 Gb/sec (4X EDR)\n", "1500\n"), State::Warning);
        assert_eq!(judged("100 Gb/sec (4X EDR)\n", "2200\n"), State::Note);
        assert_eq!(judged("25 Gb/sec (1X EDR)\n", "1500\n"), State::Note);
        assert_eq!(judged("100 Gb/sec (4X EDR)\n", "4200\n"), State::Ok);
    }

    #[test]
    fn adapter_module_is_proposed_before_software_device() {
        let plain = Machine::new()
            .file("sys/class/net/eth0/flags", "0x1003\n")
            .file("sys/class/net/eth0/mtu", "1500\n");
        let around = Surroundings::of(Distribution::Debian, false);
        let judge = |machine: &Machine, kernel: &Kernel| {
            let interfaces = Interfaces::read(&machine.root(), &[]);
            judge_none(kernel, &around, &interfaces, None)
        };
        let kernel = Kernel::with(false, Some(true), Some(true));
        let judged = |machine: &Machine| judge(machine, &kernel).unwrap().commands;
        assert_eq!(
            judged(&plain),
            [
                as_root("modprobe -a rdma_rxe rdma_ucm ib_uverbs"),
                as_root("rdma link add rxe0 type rxe netdev eth0"),
            ]
        );
        let lacks_all = Kernel::with(false, Some(false), Some(false));
        assert_eq!(
            judge(&plain, &lacks_all),
            None,
            "only the finding about the kernel must state the cause"
        );
        let lacks_rxe = Kernel::with(true, None, Some(false));
        let finding = judge(&plain, &lacks_rxe).unwrap();
        assert!(finding.commands.is_empty(), "{finding:?}");
        assert!(finding.hint.unwrap().ends_with("the module rdma_rxe"));
        let adapter = plain.link("sys/class/net/eth0/device/driver", "/drivers/mlx5_core");
        assert_eq!(judged(&adapter), [as_root("modprobe mlx5_ib")]);
    }
}
