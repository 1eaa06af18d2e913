use serde::{Deserialize, Serialize};

use super::{adapters::Adapter, devices::Device, interfaces::Interfaces, root::Root};

/// The description of an RDMA device, with its driver and firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hardware {
    pub(crate) device: String,
    /// The protocol: `RoCE`, `iWARP` or `InfiniBand`.
    protocol: String,
    /// Whether the device is implemented in software.
    is_software: bool,
    /// The name of the kernel driver.
    driver: Option<String>,
    /// The libibverbs provider library of this device.
    provider: Option<String>,
    pub(crate) firmware: Option<String>,
    /// The vendor's name for the board.
    pub(crate) board: Option<String>,
    /// The rate of the fastest port in Gb/s.
    rate: Option<u64>,
    /// The MTU of the network interface in bytes.
    mtu: Option<u64>,
    /// The maximum payload of an RDMA packet in bytes. `None` for iWARP.
    rdma_mtu: Option<u64>,
}

impl Hardware {
    /// The names of the fields, in the order of the columns of the table.
    pub(crate) const COLUMNS: [&str; 10] = [
        "device",
        "protocol",
        "is_software",
        "driver",
        "provider",
        "firmware",
        "board",
        "rate",
        "mtu",
        "rdma_mtu",
    ];
}

/// Returns the descriptions of all devices.
pub(super) fn read(root: &Root, devices: &[Device], interfaces: &Interfaces) -> Vec<Hardware> {
    let devices = devices.iter();
    devices
        .map(|it| Hardware::of(root, it, interfaces))
        .collect()
}

impl Hardware {
    fn of(root: &Root, device: &Device, interfaces: &Interfaces) -> Self {
        let names = device.interfaces();
        let interface = names.iter().find_map(|name| interfaces.named(name));
        let this = Self {
            device: device.name.clone(),
            protocol: device.protocol().into(),
            is_software: device.is_software(),
            driver: None,
            provider: None,
            firmware: None,
            board: None,
            rate: device.rate(),
            mtu: interface.map(|it| it.mtu),
            rdma_mtu: interface
                .map(|it| it.rdma_mtu())
                .filter(|_| !device.is_iwarp),
        };
        if device.is_software() {
            let [driver, provider] = if device.is_iwarp {
                ["siw", "siw"]
            } else {
                ["rdma_rxe", "rxe"]
            };
            return Self {
                driver: Some(driver.into()),
                provider: Some(provider.into()),
                ..this
            };
        }
        let Some(adapter) = Adapter::read(root, &device.name) else {
            return this;
        };
        Self {
            provider: adapter.provider().map(Into::into),
            driver: Some(adapter.driver),
            firmware: adapter.firmware,
            board: adapter.board,
            ..this
        }
    }

    /// Returns a copy with `change` applied to each text.
    pub(super) fn with_texts(&self, change: fn(&str) -> String) -> Self {
        let optional = |text: &Option<String>| text.as_deref().map(change);
        Self {
            device: change(&self.device),
            protocol: change(&self.protocol),
            driver: optional(&self.driver),
            provider: optional(&self.provider),
            firmware: optional(&self.firmware),
            board: optional(&self.board),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{devices, root::testing::Machine},
        *,
    };

    fn read_all(machine: &Machine) -> Vec<Hardware> {
        let root = machine.root();
        let interfaces = Interfaces::read(&root, &[]);
        read(&root, &devices::read(&root, &interfaces), &interfaces)
    }

    #[test]
    fn adapter_has_driver_provider_and_firmware() {
        let at = "sys/class/infiniband/bnxt_re0";
        let machine = Machine::new()
            .file(&format!("{at}/node_type"), "1: CA\n")
            .file(&format!("{at}/fw_ver"), "230.0.157.0\n")
            .file(&format!("{at}/ports/1/link_layer"), "Ethernet\n")
            .file(&format!("{at}/ports/1/rate"), "200 Gb/sec (4X HDR)\n")
            .file(
                &format!("{at}/ports/1/gids/0"),
                "0000:0000:0000:0000:0000:ffff:0a08:0001\n",
            )
            .file(&format!("{at}/ports/1/gid_attrs/ndevs/0"), "ens1\n")
            .file("sys/class/net/ens1/flags", "0x1003\n")
            .file("sys/class/net/ens1/mtu", "9000\n")
            .link(&format!("{at}/device/driver"), "/drivers/bnxt_en");
        let expected = Hardware {
            device: "bnxt_re0".into(),
            protocol: "RoCE".into(),
            is_software: false,
            driver: Some("bnxt_en".into()),
            provider: Some("bnxt_re".into()),
            firmware: Some("230.0.157.0".into()),
            board: None,
            rate: Some(200),
            mtu: Some(9000),
            rdma_mtu: Some(4096),
        };
        let mut columns = Hardware::COLUMNS;
        columns.sort_unstable();
        let json = serde_json::to_value(&expected).unwrap();
        assert!(json.as_object().unwrap().keys().eq(columns));
        assert_eq!(read_all(&machine), [expected]);
    }

    #[test]
    fn software_device_has_no_firmware() {
        let at = "sys/class/infiniband/siw0";
        let machine = Machine::new()
            .file(&format!("{at}/node_type"), "4: RNIC\n")
            .file(
                &format!("{at}/ports/1/gids/0"),
                "9ef1:5c59:c4c7:0000:0000:0000:0000:0000\n",
            )
            .file(&format!("{at}/ports/1/gid_attrs/types/0"), "IB/RoCE v1\n")
            .file("sys/class/net/eth0/address", "9e:f1:5c:59:c4:c7\n")
            .file("sys/class/net/eth0/flags", "0x1003\n")
            .file("sys/class/net/eth0/mtu", "1500\n");
        let [found] = &read_all(&machine)[..] else {
            panic!("there must be exactly one device");
        };
        assert_eq!(found.provider.as_deref(), Some("siw"));
        assert_eq!((found.mtu, found.rdma_mtu), (Some(1500), None));
        assert_eq!((&found.firmware, found.rate), (&None, None));
    }
}
