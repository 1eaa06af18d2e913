use super::{distribution::Distribution, finding::Finding, root::Root};

/// The files that container runtimes create in the root directory of a container.
const FILES: [&str; 3] = [".dockerenv", "run/.containerenv", "run/systemd/container"];

/// Substrings that occur in the names of a container's control groups.
const GROUPS: [&str; 5] = ["docker", "kubepods", "containerd", "libpod", "lxc"];

/// The system in which this program runs.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    distribution: Distribution,
    is_container: bool,
    /// The assignment of RDMA devices to network namespaces, if the kernel reports it.
    namespaces: Option<Namespaces>,
}

/// The kernel's assignment of RDMA devices to network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespaces {
    /// Each device is visible in all network namespaces.
    Shared,
    /// Each device is visible in one network namespace.
    Exclusive,
}

impl Surroundings {
    pub(super) fn read(root: &Root) -> Self {
        let groups = root.text("proc/1/cgroup").unwrap_or_default();
        let mode = root.text("sys/module/ib_core/parameters/netns_mode");
        Self {
            distribution: Distribution::read(root),
            // A virtual machine may have been started from a container image, so the files alone do
            // not prove that this is a container. Outside of containers, process 2 is `kthreadd`.
            is_container: root
                .text("proc/2/comm")
                .is_none_or(|name| name != "kthreadd")
                && (FILES.iter().any(|file| root.has(file))
                    || GROUPS.iter().any(|group| groups.contains(group))),
            namespaces: mode.map(|mode| match &*mode {
                "N" | "0" => Namespaces::Exclusive,
                _ => Namespaces::Shared,
            }),
        }
    }

    #[cfg(test)]
    pub(super) fn of(distribution: Distribution, is_container: bool) -> Self {
        Self {
            distribution,
            is_container,
            namespaces: None,
        }
    }

    pub(super) fn is_container(&self) -> bool {
        self.is_container
    }

    pub(super) fn distribution(&self) -> Distribution {
        self.distribution
    }

    /// Returns a finding if this is a container, or if each RDMA device is visible in only one
    /// network namespace.
    pub(super) fn judge(&self) -> Option<Finding> {
        let exclusive = self.namespaces == Some(Namespaces::Exclusive);
        match (self.is_container, exclusive) {
            (false, false) => None,
            (false, true) => Some(Finding::note(
                "namespaces",
                "each RDMA device is in one network namespace (mode exclusive)",
            )),
            (true, false) => Some(Finding::note("container", "this is a container").because(
                "it has the device files and the limit on locked memory that its runtime \
                     gives it, and uses the addresses of its network namespace",
            )),
            (true, true) => Some(
                Finding::note(
                    "container",
                    "this is a container, and each RDMA device is in one network namespace (mode \
                     exclusive)",
                )
                .because("it sees only devices that were moved into its network namespace")
                .hint(
                    "on the host: `rdma dev set DEVICE netns NAME`, or run the container with the \
                     host's network",
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::root::testing::Machine, *};

    #[test]
    fn container_and_its_devices_are_detected() {
        let host = Machine::new().file("sys/module/ib_core/parameters/netns_mode", "Y\n");
        assert_eq!(Surroundings::read(&host.root()).judge(), None);
        let container = host.file(".dockerenv", "");
        let finding = Surroundings::read(&container.root()).judge().unwrap();
        assert_eq!(finding.subject, "container");
        let machine = Machine::new()
            .file(".dockerenv", "")
            .file("proc/2/comm", "kthreadd\n");
        assert_eq!(Surroundings::read(&machine.root()).judge(), None);
        let exclusive = container.file("sys/module/ib_core/parameters/netns_mode", "N\n");
        let finding = Surroundings::read(&exclusive.root()).judge().unwrap();
        assert!(finding.hint.unwrap().contains("rdma dev set"));
    }
}
