use std::{env, fs, path::Path};

use crate::os::PerProcess;

/// Files that container runtimes create in a container's root.
const FILES: [&str; 3] = [".dockerenv", "run/.containerenv", "run/systemd/container"];

/// Parts of the names of control groups in containers.
const GROUPS: [&str; 5] = ["docker", "kubepods", "containerd", "libpod", "lxc"];

/// Returns whether this process appears to run in a container.
pub(crate) fn is_container() -> bool {
    static IS: PerProcess<bool> = PerProcess::new(|| {
        env::var_os("KUBERNETES_SERVICE_HOST").is_some()
            || env::var_os("container").is_some()
            || looks_like_one(Path::new("/"))
    });
    *IS.get()
}

fn looks_like_one(root: &Path) -> bool {
    FILES.iter().any(|file| root.join(file).exists())
        || fs::read_to_string(root.join("proc/1/cgroup"))
            .is_ok_and(|groups| GROUPS.iter().any(|group| groups.contains(group)))
}

#[cfg(test)]
mod tests {
    use super::{super::testing::Root, *};

    #[test]
    fn a_container_is_known_by_its_runtimes_file_or_control_group() {
        let host = Root::new();
        assert!(!looks_like_one(host.path()));
        host.write("proc/1/cgroup", "0::/init.scope\n");
        assert!(!looks_like_one(host.path()));
        for (file, text) in [
            (".dockerenv", ""),
            ("run/.containerenv", "engine=\"podman-4.3.1\"\n"),
            ("run/systemd/container", "systemd-nspawn\n"),
            ("proc/1/cgroup", "12:cpu:/docker/0123456789ab\n"),
            ("proc/1/cgroup", "0::/kubepods.slice/kubepods-pod1.slice\n"),
        ] {
            let container = Root::new();
            container.write(file, text);
            assert!(looks_like_one(container.path()), "{file}: {text}");
        }
    }
}
