use super::{finding::Finding, root::Root};

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

/// A Linux distribution. It determines the command that installs a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    Debian,
    Ubuntu,
    Fedora,
    Other,
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

impl Distribution {
    fn read(root: &Root) -> Self {
        let release = root.text("etc/os-release").unwrap_or_default();
        let value = |key: &str| {
            let line = release.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default().trim_matches('"').to_owned()
        };
        let ids = format!("{} {}", value("ID="), value("ID_LIKE="));
        let is = |name: &str| ids.split_whitespace().any(|id| id == name);
        if is("ubuntu") {
            Self::Ubuntu
        } else if is("debian") {
            Self::Debian
        } else if is("fedora") || is("rhel") {
            Self::Fedora
        } else {
            Self::Other
        }
    }

    /// Returns the command that installs a package, given the names of the package on Debian and on
    /// Fedora.
    pub(super) fn install(self, debian: &str, fedora: &str) -> String {
        match self {
            Self::Debian | Self::Ubuntu | Self::Other => format!("apt install {debian}"),
            Self::Fedora => format!("dnf install {fedora}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::root::testing::Machine, *};

    #[test]
    fn distributions_are_recognized_by_id_like() {
        for (text, expected) in [
            ("ID=debian\nVERSION_ID=\"12\"\n", Distribution::Debian),
            (
                "NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n",
                Distribution::Ubuntu,
            ),
            (
                "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                Distribution::Ubuntu,
            ),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                Distribution::Fedora,
            ),
            ("ID=arch\n", Distribution::Other),
        ] {
            let machine = Machine::new().file("etc/os-release", text);
            assert_eq!(Distribution::read(&machine.root()), expected, "{text}");
        }
    }

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
