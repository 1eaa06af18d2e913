use std::process::Stdio;

use super::{
    distribution::Distribution,
    finding::{Finding, as_root, write_line},
    root::{Root, command},
    surroundings::Surroundings,
};

const SUBJECT: &str = "kernel";

const WHY: &str = "the kernel's connection manager establishes connections; programs use the \
                   manager through rdma_ucm, and use devices through ib_uverbs";

/// The state of the kernel modules that programs use for RDMA.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    release: String,
    /// Whether the device of the RDMA connection manager exists.
    has_cm: bool,
    /// Whether the verbs device class exists.
    has_verbs: bool,
    /// Whether the kernel can load the missing modules, or `None` if this is unknown.
    can_load: Option<bool>,
    /// Whether the kernel can load software RoCE, or `None` if this is unknown.
    can_load_rxe: Option<bool>,
    /// Whether this system contains no files of any kernel. In this case, the host of this
    /// container or virtual machine provides the running kernel.
    is_external: bool,
}

impl Kernel {
    pub(super) fn read(root: &Root) -> Self {
        let has_cm = root.has("sys/class/misc/rdma_cm");
        let has_verbs = root.has("sys/class/infiniband_verbs");
        let is_ready = has_cm && has_verbs;
        let release = root.text("proc/sys/kernel/osrelease").unwrap_or_default();
        let files = [
            format!("lib/modules/{release}"),
            format!("boot/vmlinuz-{release}"),
        ];
        Self {
            // After a kernel upgrade, `lib/modules` can contain the files of the new kernel, but no
            // files of the running kernel. Therefore the running kernel is external only if this
            // directory is empty and none of the running kernel's `files` exists.
            is_external: !release.is_empty()
                && root.names("lib/modules").is_empty()
                && !files.iter().any(|file| root.has(file)),
            release,
            has_cm,
            has_verbs,
            can_load: if is_ready { None } else { can_load("rdma_ucm") },
            can_load_rxe: can_load("rdma_rxe"),
        }
    }

    pub(super) fn release(&self) -> &str {
        &self.release
    }

    /// Returns whether the kernel has all modules that a connection needs.
    pub(super) fn is_ready(&self) -> bool {
        self.has_cm && self.has_verbs
    }

    /// Returns true if the kernel lacks modules and cannot load them. The finding about the kernel
    /// then explains why devices are missing.
    pub(super) fn lacks_modules(&self) -> bool {
        !self.is_ready() && self.can_load == Some(false)
    }

    /// Returns true if the kernel cannot load software RoCE.
    pub(super) fn lacks_rxe(&self) -> bool {
        self.can_load_rxe == Some(false)
    }

    #[cfg(test)]
    pub(super) fn with(is_ready: bool, can_load: Option<bool>, can_load_rxe: Option<bool>) -> Self {
        Self {
            release: "6.1.0-56-amd64".into(),
            has_cm: is_ready,
            has_verbs: is_ready,
            can_load,
            can_load_rxe,
            is_external: false,
        }
    }

    pub(super) fn judge(&self, around: &Surroundings) -> Finding {
        let missing = match (self.has_cm, self.has_verbs) {
            (true, true) => {
                return Finding::ok(
                    SUBJECT,
                    "the connection manager (rdma_ucm) and verbs (ib_uverbs) are loaded",
                );
            }
            (true, false) => "ib_uverbs is not loaded",
            (false, true) => "rdma_ucm is not loaded",
            (false, false) => "neither rdma_ucm nor ib_uverbs is loaded",
        };
        let finding = Finding::error(SUBJECT, missing).because(WHY);
        if around.is_container() {
            return finding
                .command("modprobe -a rdma_ucm ib_uverbs")
                .hint("this is a container: run the command on its host, as root");
        }
        if self.can_load != Some(false) {
            return finding
                .command(as_root("modprobe -a rdma_ucm ib_uverbs"))
                .keep(write_line("rdma_ucm", "/etc/modules-load.d/rdmsg.conf"));
        }
        let release = &self.release;
        if self.is_external {
            return finding.hint(format!(
                "kernel {release} does not contain these modules, and /lib/modules and /boot have \
                 no files of this kernel: it seems to be supplied from outside this machine (as by \
                 Firecracker), and must be replaced there"
            ));
        }
        let finding = finding.hint(format!(
            "kernel {release} does not contain these modules; another kernel of the distribution \
             contains them"
        ));
        match around.distribution() {
            Distribution::Ubuntu => finding
                .command(as_root(&format!(
                    "apt install linux-modules-extra-{release}"
                )))
                .command(as_root("modprobe -a rdma_ucm ib_uverbs")),
            Distribution::Debian => finding
                .command(as_root("apt install linux-image-amd64"))
                .command(as_root("reboot")),
            Distribution::Fedora => finding
                .command(as_root("dnf install kernel-modules-extra rdma-core"))
                .command(as_root("modprobe -a rdma_ucm ib_uverbs")),
            Distribution::Other => finding,
        }
    }
}

/// Returns whether modprobe finds the module. Returns `None` if modprobe cannot be run.
fn can_load(module: &str) -> Option<bool> {
    let status = command("modprobe")?
        .args(["--dry-run", "--quiet", module])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    Some(status.ok()?.success())
}

#[cfg(test)]
mod tests {
    use super::{super::finding::State, super::root::testing::Machine, *};

    fn judged(has_cm: bool, can_load: Option<bool>, distribution: Distribution) -> Finding {
        let kernel = Kernel {
            release: "6.1.0-56-amd64".into(),
            has_cm,
            has_verbs: true,
            can_load,
            can_load_rxe: None,
            is_external: false,
        };
        kernel.judge(&Surroundings::of(distribution, false))
    }

    #[test]
    fn loaded_modules_are_read_from_sysfs() {
        let machine = Machine::new()
            .file("proc/sys/kernel/osrelease", "6.1.0-56-amd64\n")
            .file("sys/class/misc/rdma_cm/dev", "10:58\n");
        let kernel = Kernel::read(&machine.root());
        assert_eq!(kernel.release(), "6.1.0-56-amd64");
        assert!(kernel.has_cm && !kernel.has_verbs && !kernel.is_ready());
    }

    #[test]
    fn missing_module_is_loaded_or_installed() {
        let fine = judged(true, None, Distribution::Debian);
        assert_eq!(fine.state, State::Ok);
        let missing = judged(false, Some(true), Distribution::Debian);
        assert_eq!(missing.state, State::Error);
        assert_eq!(
            missing.commands,
            [as_root("modprobe -a rdma_ucm ib_uverbs")]
        );
        let absent = judged(false, Some(false), Distribution::Ubuntu);
        assert_eq!(
            absent.commands[0],
            as_root("apt install linux-modules-extra-6.1.0-56-amd64")
        );
    }

    #[test]
    fn kernel_without_files_is_not_installed_again() {
        const RELEASE: &str = "6.1.0-56-amd64";
        let judged = |machine: Machine| {
            let machine = machine.file("proc/sys/kernel/osrelease", RELEASE);
            let mut kernel = Kernel::read(&machine.root());
            kernel.can_load = Some(false);
            kernel.judge(&Surroundings::of(Distribution::Debian, false))
        };
        let external = judged(Machine::new());
        assert!(external.commands.is_empty(), "{:?}", external.commands);
        assert!(external.hint.unwrap().contains("from outside this machine"));
        for file in [
            "lib/modules/6.1.0-56-amd64/x",
            "boot/vmlinuz-6.1.0-56-amd64",
        ] {
            let installed = judged(Machine::new().file(file, ""));
            assert_eq!(
                installed.commands[0],
                as_root("apt install linux-image-amd64")
            );
        }
    }

    #[test]
    fn a_container_cannot_load_modules() {
        let kernel = Kernel {
            release: String::new(),
            has_cm: false,
            has_verbs: false,
            can_load: Some(false),
            can_load_rxe: None,
            is_external: true,
        };
        let finding = kernel.judge(&Surroundings::of(Distribution::Debian, true));
        assert_eq!(finding.commands, ["modprobe -a rdma_ucm ib_uverbs"]);
        assert!(finding.hint.unwrap().contains("host"));
    }
}
