use super::{
    devices::Device,
    finding::{Finding, as_root},
    surroundings::Surroundings,
};

const SUBJECT: &str = "libraries";

/// The result of listing the RDMA devices with libibverbs. libibverbs lists only devices for which
/// it has a provider library.
#[derive(Clone, Debug)]
pub(super) enum Libraries {
    /// The names of the devices.
    Offer(Vec<String>),
    /// libibverbs cannot list devices, because of this error.
    Failed(String),
    /// This program was built without RDMA.
    NotBuilt,
}

impl Libraries {
    pub(super) fn read() -> Self {
        match offered() {
            None => Self::NotBuilt,
            Some(Ok(names)) => Self::Offer(names),
            Some(Err(error)) => Self::Failed(error),
        }
    }

    pub(super) fn judge(&self, devices: &[Device], around: &Surroundings) -> Option<Finding> {
        let install = around.distribution().install(
            "librdmacm1 libibverbs1 ibverbs-providers",
            "librdmacm libibverbs",
        );
        match self {
            Self::NotBuilt => Some(
                Finding::error(SUBJECT, "this program was built without RDMA")
                    .because("it supports only TCP")
                    .command("cargo install rdmsg-cli"),
            ),
            Self::Failed(error) if !devices.is_empty() => Some(
                Finding::error(SUBJECT, format!("libibverbs lists no devices: {error}"))
                    .because("programs use devices through librdmacm and libibverbs")
                    .command(as_root(&install)),
            ),
            // Another finding already states that the host has no device.
            Self::Failed(_) => None,
            Self::Offer(names) => {
                let unknown: Vec<&str> = devices
                    .iter()
                    .map(|device| &*device.name)
                    .filter(|name| !names.iter().any(|offered| offered == name))
                    .collect();
                if unknown.is_empty() {
                    return (!devices.is_empty())
                        .then(|| Finding::ok(SUBJECT, "libibverbs has a driver for each device"));
                }
                let what = format!("libibverbs has no driver for {}", unknown.join(", "));
                Some(
                    Finding::error(SUBJECT, what)
                        .because("each kind of device needs a provider library of its own")
                        .command(as_root(&install)),
                )
            }
        }
    }
}

/// Returns the names of the devices that libibverbs lists, or `None` if this program was built
/// without RDMA.
#[cfg(feature = "rdma")]
fn offered() -> Option<Result<Vec<String>, String>> {
    let devices = rdmsg::verbs::DeviceList::new();
    let names = devices.map(|devices| devices.iter().map(|device| device.name()).collect());
    Some(names.map_err(|error| error.to_string()))
}

#[cfg(not(feature = "rdma"))]
fn offered() -> Option<Result<Vec<String>, String>> {
    None
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            devices, distribution::Distribution, finding::State, interfaces::Interfaces,
            root::testing::Machine,
        },
        *,
    };

    #[test]
    fn each_device_needs_the_library_of_its_driver() {
        let machine = Machine::new()
            .file("sys/class/infiniband/mlx5_0/ports/1/state", "")
            .file("sys/class/infiniband/rxe0/ports/1/state", "");
        let devices = devices::read(&machine.root(), &Interfaces::default());
        let around = Surroundings::of(Distribution::Debian, false);
        let judged = |offered: &[&str]| {
            let names = offered.iter().map(|&name| name.to_owned()).collect();
            Libraries::Offer(names).judge(&devices, &around).unwrap()
        };
        assert_eq!(judged(&["mlx5_0", "rxe0"]).state, State::Ok);
        let finding = judged(&["mlx5_0"]);
        assert!(finding.what.ends_with("for rxe0"), "{}", finding.what);
        assert!(finding.commands[0].ends_with("ibverbs-providers"));
        assert_eq!(Libraries::Offer(Vec::new()).judge(&[], &around), None);
        let built = Libraries::NotBuilt.judge(&[], &around).unwrap();
        assert_eq!(built.state, State::Error);
    }
}
