//! Examines the driver, firmware, slot, interrupts and known problems of adapters, which are RDMA
//! devices implemented in hardware.

use std::collections::BTreeSet;

use super::{devices::Device, finding::Finding, root::Root};

/// The PCI drivers of adapters, each with its RDMA kernel module and its libibverbs provider
/// library.
const DRIVERS: [(&str, &str, &str); 9] = [
    ("mlx5_core", "mlx5_ib", "mlx5"),
    ("mlx4_core", "mlx4_ib", "mlx4"),
    ("bnxt_en", "bnxt_re", "bnxt_re"),
    ("ice", "irdma", "irdma"),
    ("i40e", "irdma", "irdma"),
    ("cxgb4", "iw_cxgb4", "cxgb4"),
    ("qede", "qedr", "qedr"),
    ("efa", "efa", "efa"),
    ("erdma", "erdma", "erdma"),
];

/// The properties of an adapter, read from sysfs.
#[derive(Clone, Debug)]
pub(super) struct Adapter {
    name: String,
    /// The name of the PCI driver, for example `mlx5_core`.
    pub(super) driver: String,
    pub(super) firmware: Option<String>,
    /// The vendor's name for the board.
    pub(super) board: Option<String>,
    /// The version of the interface between the kernel driver and the provider library.
    abi: Option<u64>,
    slot: Slot,
    /// The number of interrupts of the adapter.
    interrupts: usize,
    /// The processors that handle the interrupts.
    served: BTreeSet<usize>,
    /// The processors of the adapter's NUMA node. The set is empty if the host has only one node.
    local: BTreeSet<usize>,
    /// The number of processors of the host.
    processors: usize,
}

/// The speed and the width of a PCIe slot: the values in use, and the maximum values that the
/// adapter supports.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    current: [Option<String>; 2],
    most: [Option<String>; 2],
}

/// A driver, or a combination of versions, with a known problem.
struct Known {
    driver: &'static str,
    applies: fn(&Adapter) -> bool,
    finding: fn(&Adapter) -> Finding,
    /// The web page or report that describes the problem.
    source: &'static str,
}

/// The known problems. To make the doctor report another problem, add a row. The hint of each
/// finding names the source of its row.
const KNOWN: [Known; 2] = [
    Known {
        driver: "bnxt_en",
        // The driver of the mainline kernel has interface version 1.
        applies: |it| it.abi.is_some_and(|abi| abi > 1),
        finding: |it| {
            let abi = it.abi.unwrap_or(0);
            let what = format!("{} has the vendor's driver, with interface {abi}", it.name);
            Finding::warning("combination", what)
                .because(
                    "the library libbnxt_re of distributions supports only interface 1, so \
                     libibverbs does not list the device",
                )
                .hint("install the vendor's libbnxt_re as well, also in containers")
        },
        source: "github.com/k8snetworkplumbingwg/sriov-cni/issues/348",
    },
    Known {
        driver: "efa",
        applies: |_| true,
        finding: |it| {
            Finding::note("combination", format!("{} is an EFA device", it.name))
                .because("it supports no reliable connections (RC), so rdmsg uses TCP on this host")
                .hint("no setting changes that")
        },
        source: "efadv_create_qp_ex(3) of rdma-core",
    },
];

/// Returns the kernel module that adds RDMA to network adapters with this driver. Returns `None` if
/// the driver is unknown.
pub(super) fn rdma_module(driver: &str) -> Option<&'static str> {
    let row = DRIVERS.iter().find(|(name, ..)| *name == driver);
    row.map(|(_, module, _)| *module)
}

/// Returns the findings about all adapters.
pub(super) fn judge(root: &Root, devices: &[Device]) -> Vec<Finding> {
    let adapters = devices.iter().filter(|device| !device.is_software());
    let adapters = adapters.filter_map(|device| Adapter::read(root, &device.name));
    adapters.flat_map(|adapter| adapter.judge()).collect()
}

impl Adapter {
    /// Reads the properties of the device `name`. Returns `None` for a device without a bus driver,
    /// because such a device is not an adapter.
    pub(super) fn read(root: &Root, name: &str) -> Option<Self> {
        let at = format!("sys/class/infiniband/{name}");
        let device = format!("{at}/device");
        let driver = root.target_name(format!("{device}/driver"))?;
        let numbers = root.names(format!("{device}/msi_irqs"));
        let served = numbers.iter().flat_map(|number| affinity(root, number));
        let node = root.text(format!("{device}/numa_node"));
        let nodes = root.names("sys/devices/system/node");
        let nodes = nodes.iter().filter(|name| is_node(name)).count();
        let local = node.filter(|node| nodes > 1 && !node.starts_with('-'));
        let local =
            local.and_then(|node| root.text(format!("sys/devices/system/node/node{node}/cpulist")));
        let online = root.text("sys/devices/system/cpu/online");
        let value = |file: &str| {
            root.text(format!("{at}/{file}"))
                .filter(|it| !it.is_empty())
        };
        let link = |file: &str| root.text(format!("{device}/{file}"));
        Some(Self {
            name: name.to_owned(),
            driver,
            firmware: value("fw_ver"),
            board: value("board_id"),
            abi: abi(root, name),
            slot: Slot {
                current: [link("current_link_speed"), link("current_link_width")],
                most: [link("max_link_speed"), link("max_link_width")],
            },
            interrupts: numbers.len(),
            served: served.collect(),
            local: local.iter().flat_map(|list| processors(list)).collect(),
            processors: online.map_or(0, |list| processors(&list).len()),
        })
    }

    /// Returns the name of the adapter's provider library for libibverbs.
    pub(super) fn provider(&self) -> Option<&'static str> {
        let row = DRIVERS.iter().find(|(driver, ..)| *driver == self.driver);
        row.map(|(.., provider)| *provider)
    }

    fn judge(&self) -> Vec<Finding> {
        let known = KNOWN.iter().filter(|known| known.driver == self.driver);
        let known = known.filter(|known| (known.applies)(self)).map(|known| {
            let finding = (known.finding)(self);
            let hint = finding.hint.clone().unwrap_or_default();
            finding.hint(format!("{hint} (source: {})", known.source))
        });
        let findings = [self.describe()].into_iter().chain(known);
        let more = [self.judge_slot(), self.judge_interrupts()];
        findings.chain(more.into_iter().flatten()).collect()
    }

    fn describe(&self) -> Finding {
        let mut what = format!("{} has the driver {}", self.name, self.driver);
        if let Some(provider) = self.provider() {
            what += &format!(", the provider {provider}");
        }
        if let Some(firmware) = &self.firmware {
            what += &format!(", firmware {firmware}");
        }
        if let Some(board) = &self.board {
            what += &format!(", board {board}");
        }
        Finding::ok("adapter", what)
    }

    fn judge_slot(&self) -> Option<Finding> {
        let Slot { current, most } = &self.slot;
        let numbers = |link: &[Option<String>; 2]| Some([number(&link[0])?, number(&link[1])?]);
        let (now, could) = (numbers(current)?, numbers(most)?);
        if now[0] >= could[0] && now[1] >= could[1] {
            return None;
        }
        let text =
            |link: &[Option<String>; 2]| link.each_ref().map(|it| it.clone().unwrap_or_default());
        let ([speed, width], [most_speed, most_width]) = (text(current), text(most));
        let what = format!(
            "{} is in a slot of {width} lanes at {speed}, and can use {most_width} at {most_speed}",
            self.name
        );
        Some(
            Finding::note("slot", what)
                .because("a slot that is slower than the port limits the bandwidth")
                .hint(
                    "`lspci -vv` shows LnkSta; another slot or a setting of the firmware may help",
                ),
        )
    }

    fn judge_interrupts(&self) -> Option<Finding> {
        const SUBJECT: &str = "interrupts";
        if self.interrupts == 0 || self.served.is_empty() {
            return None;
        }
        let (name, count) = (&self.name, self.interrupts);
        let served = list(&self.served);
        let remedy = "start irqbalance, or write processors to /proc/irq/NUMBER/smp_affinity_list";
        if self.served.len() == 1 && count > 1 && self.processors > 1 {
            let what = format!("processor {served} serves all {count} interrupts of {name}");
            return Some(
                Finding::warning(SUBJECT, what)
                    .because("the wake-ups of all connections wait for one processor")
                    .hint(remedy),
            );
        }
        if !self.local.is_empty() && self.served.is_disjoint(&self.local) {
            let what = format!(
                "processors {served} serve the interrupts of {name}, whose NUMA node has \
                 processors {}",
                list(&self.local)
            );
            return Some(
                Finding::note(SUBJECT, what)
                    .because("completions cross from one NUMA node to another")
                    .hint(remedy),
            );
        }
        let what = format!("processors {served} serve {count} interrupts of {name}");
        Some(Finding::ok(SUBJECT, what))
    }
}

/// Returns the version of the interface between the kernel driver of a device and its provider
/// library.
fn abi(root: &Root, device: &str) -> Option<u64> {
    let all = root.names("sys/class/infiniband_verbs");
    let at = all.into_iter().find(|name| {
        let named = root.text(format!("sys/class/infiniband_verbs/{name}/ibdev"));
        named.as_deref() == Some(device)
    });
    root.number(format!("sys/class/infiniband_verbs/{}/abi_version", at?))
}

/// Returns the processors that handle an interrupt. If the kernel does not report them, returns the
/// processors that are allowed to handle the interrupt.
fn affinity(root: &Root, number: &str) -> BTreeSet<usize> {
    let at = format!("proc/irq/{number}");
    let files = ["effective_affinity_list", "smp_affinity_list"];
    let mut lists = files
        .iter()
        .filter_map(|file| root.text(format!("{at}/{file}")));
    let list = lists.find(|list| !list.is_empty());
    list.map_or_else(BTreeSet::new, |list| processors(&list))
}

/// Parses a list of processors such as `0-3,8`.
fn processors(list: &str) -> BTreeSet<usize> {
    let ranges = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Formats a list of processors, for example as `0-3,8`.
fn list(processors: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for processor in processors {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *processor => *last = *processor,
            _ => ranges.push((*processor, *processor)),
        }
    }
    let texts = ranges.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

fn is_node(name: &str) -> bool {
    let number = name.strip_prefix("node");
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Returns ten times the number at the start of a text such as `16.0 GT/s PCIe`. The factor
/// preserves the first decimal of a speed such as 2.5 GT/s.
fn number(text: &Option<String>) -> Option<u64> {
    let number: f64 = text.as_ref()?.split(' ').next()?.parse().ok()?;
    Some((number * 10.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{finding::State, root::testing::Machine},
        *,
    };

    const DEVICE: &str = "sys/class/infiniband/mlx5_0/device";

    /// Returns a host with two NUMA nodes of four processors each, and an adapter with two
    /// interrupts.
    fn machine(driver: &str, affinities: [&str; 2]) -> Machine {
        Machine::new()
            .file("sys/class/infiniband/mlx5_0/fw_ver", "20.31.1014\n")
            .file("sys/class/infiniband/mlx5_0/board_id", "MT_0000000223\n")
            .file("sys/class/infiniband_verbs/abi_version", "6\n")
            .file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
            .file("sys/class/infiniband_verbs/uverbs0/abi_version", "1\n")
            .link(&format!("{DEVICE}/driver"), &format!("/drivers/{driver}"))
            .file(&format!("{DEVICE}/numa_node"), "1\n")
            .file(&format!("{DEVICE}/msi_irqs/40"), "msix\n")
            .file(&format!("{DEVICE}/msi_irqs/41"), "msix\n")
            .file(&format!("{DEVICE}/current_link_speed"), "16.0 GT/s PCIe\n")
            .file(&format!("{DEVICE}/current_link_width"), "16\n")
            .file(&format!("{DEVICE}/max_link_speed"), "16.0 GT/s PCIe\n")
            .file(&format!("{DEVICE}/max_link_width"), "16\n")
            .file("proc/irq/40/effective_affinity_list", affinities[0])
            .file("proc/irq/41/smp_affinity_list", affinities[1])
            .file("sys/devices/system/cpu/online", "0-7\n")
            .file("sys/devices/system/node/node0/cpulist", "0-3\n")
            .file("sys/devices/system/node/node1/cpulist", "4-7\n")
            .file("sys/devices/system/node/possible", "0-1\n")
    }

    fn judged(machine: &Machine) -> Vec<Finding> {
        let adapter = Adapter::read(&machine.root(), "mlx5_0").unwrap();
        adapter.judge()
    }

    fn subjects(findings: &[Finding]) -> Vec<(&str, State)> {
        let all = findings.iter();
        all.map(|it| (&*it.subject, it.state)).collect()
    }

    #[test]
    fn adapter_is_described_by_driver_and_firmware() {
        let findings = judged(&machine("mlx5_core", ["4\n", "5-6\n"]));
        let expected = [("adapter", State::Ok), ("interrupts", State::Ok)];
        assert_eq!(subjects(&findings), expected);
        assert_eq!(
            findings[0].what,
            "mlx5_0 has the driver mlx5_core, the provider mlx5, firmware 20.31.1014, board \
             MT_0000000223"
        );
        let what = "processors 4-6 serve 2 interrupts of mlx5_0";
        assert_eq!(findings[1].what, what);
    }

    #[test]
    fn interrupts_on_one_cpu_or_far_node_are_reported() {
        let findings = judged(&machine("mlx5_core", ["4\n", "4\n"]));
        assert_eq!(findings[1].state, State::Warning);
        let what = "processor 4 serves all 2 interrupts of mlx5_0";
        assert_eq!(findings[1].what, what);
        let findings = judged(&machine("mlx5_core", ["0\n", "2\n"]));
        assert_eq!(findings[1].state, State::Note);
        assert_eq!(
            findings[1].what,
            "processors 0,2 serve the interrupts of mlx5_0, whose NUMA node has processors 4-7"
        );
        // One of the two processors is in the adapter's NUMA node, so there is no finding about the
        // node.
        let findings = judged(&machine("mlx5_core", ["0\n", "4\n"]));
        assert_eq!(findings[1].state, State::Ok);
    }

    #[test]
    fn slot_with_fewer_lanes_is_noted() {
        let narrow = machine("mlx5_core", ["4\n", "5\n"])
            .file(&format!("{DEVICE}/current_link_width"), "8\n");
        let findings = judged(&narrow);
        assert_eq!(subjects(&findings)[1], ("slot", State::Note));
        assert_eq!(
            findings[1].what,
            "mlx5_0 is in a slot of 8 lanes at 16.0 GT/s PCIe, and can use 16 at 16.0 GT/s PCIe"
        );
    }

    #[test]
    fn known_combinations_are_reported_with_their_source() {
        let distribution = machine("bnxt_en", ["4\n", "5\n"]);
        assert!(
            judged(&distribution)
                .iter()
                .all(|it| it.subject != "combination")
        );
        let vendor = distribution.file("sys/class/infiniband_verbs/uverbs0/abi_version", "6\n");
        let findings = judged(&vendor);
        assert_eq!(subjects(&findings)[1], ("combination", State::Warning));
        let hint = findings[1].hint.as_ref().unwrap();
        assert!(hint.ends_with("(source: github.com/k8snetworkplumbingwg/sriov-cni/issues/348)"));
        let findings = judged(&machine("efa", ["4\n", "5\n"]));
        assert_eq!(subjects(&findings)[1], ("combination", State::Note));
    }

    #[test]
    fn device_without_a_bus_is_no_adapter() {
        let software = Machine::new().file("sys/class/infiniband/mlx5_0/fw_ver", "\n");
        assert!(Adapter::read(&software.root(), "mlx5_0").is_none());
    }

    #[test]
    fn lists_of_processors_come_back() {
        for text in ["0", "0-3,8", "1,3,5-6", ""] {
            assert_eq!(list(&processors(text)), text);
        }
    }
}
