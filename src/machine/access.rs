use std::{
    env, fmt, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::unistd::{Gid, Group};

use crate::os::PerProcess;

/// A device file that RDMA needs and that this process is not permitted to open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denied {
    /// The file.
    pub file: PathBuf,
    /// The name or number of the group that owns the file; `None` if it cannot be determined.
    pub group: Option<String>,
    /// The file's mode bits, as in `chmod(1)`; 0 if they cannot be determined.
    pub mode: u32,
}

/// Returns the first device file that this process is not permitted to open. Checks the files of
/// the connection manager and of all devices.
pub(crate) fn denied() -> Option<Denied> {
    denied_in(Path::new("/dev/infiniband"))
}

/// Returns the same as [`denied`] if there are devices and this process is not permitted to open
/// any of them. Returns `None` in all other cases.
pub(crate) fn all_denied() -> Option<Denied> {
    all_denied_in(Path::new("/dev/infiniband"))
}

fn all_denied_in(folder: &Path) -> Option<Denied> {
    let files = files(folder);
    let devices = files.iter().filter(|file| !file.ends_with("rdma_cm"));
    let all = devices.clone().count() > 0 && devices.clone().all(|file| is_denied(file));
    if all { denied_in(folder) } else { None }
}

fn denied_in(folder: &Path) -> Option<Denied> {
    let denied = files(folder).into_iter().find(|file| is_denied(file));
    denied.map(|file| {
        let metadata = fs::metadata(&file).ok();
        Denied {
            group: metadata.as_ref().map(|metadata| group(metadata.gid())),
            mode: metadata.map_or(0, |metadata| metadata.mode() & 0o7777),
            file,
        }
    })
}

/// Returns the device files. Returns only the folder itself if this process is not permitted to
/// read the folder, and no file if the folder cannot be read for another reason.
fn files(folder: &Path) -> Vec<PathBuf> {
    let is_device = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name == "rdma_cm" || name.starts_with("uverbs"))
    };
    let mut files: Vec<PathBuf> = match fs::read_dir(folder) {
        Ok(entries) => entries
            .flatten()
            .map(|entry| entry.path())
            .filter(is_device)
            .collect(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            vec![folder.to_owned()]
        }
        Err(_) => Vec::new(),
    };
    files.sort();
    files
}

fn is_denied(file: &Path) -> bool {
    let error = if file.is_dir() {
        fs::read_dir(file).err()
    } else {
        let opened = fs::File::options().read(true).write(true).open(file);
        opened.err()
    };
    error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn group(gid: u32) -> String {
    match Group::from_gid(Gid::from_raw(gid)) {
        Ok(Some(group)) => group.name,
        Ok(None) | Err(_) => gid.to_string(),
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this process may not read and write {}",
            self.file.display()
        )?;
        match &self.group {
            // Joining the group helps only if the group may read and write the file. No user should
            // join the group `root`.
            Some(group) if self.mode & 0o060 == 0o060 && group != "root" => write!(
                f,
                " (mode {:04o}): add its user to the group {group} (`usermod -aG {group} USER`)",
                self.mode
            ),
            Some(group) => write!(
                f,
                " (mode {:04o}, group {group}): change its permissions with a udev rule, such as \
                 `KERNEL==\"uverbs*|rdma_cm\", GROUP=\"rdma\", MODE=\"0660\"` in \
                 /etc/udev/rules.d, and add its user to that group",
                self.mode
            ),
            None => f.write_str(": its permissions cannot be read; `ls -l` as root shows them"),
        }
    }
}

/// Files that container runtimes create in the root folder of a container.
const FILES: [&str; 3] = [".dockerenv", "run/.containerenv", "run/systemd/container"];

/// If the name of a control group contains one of these texts, the group belongs to a container.
const GROUPS: [&str; 5] = ["docker", "kubepods", "containerd", "libpod", "lxc"];

/// Returns whether this process appears to run in a container.
pub(crate) fn is_container() -> bool {
    static IS: PerProcess<bool> = PerProcess::new(|| {
        env::var_os("KUBERNETES_SERVICE_HOST").is_some()
            || env::var_os("container").is_some()
            || has_container_marks(Path::new("/"))
    });
    *IS.get()
}

fn has_container_marks(root: &Path) -> bool {
    // A virtual machine that was booted from a container image also contains `FILES`. If process 2
    // is `kthreadd`, this process runs outside of containers.
    let of_kernel = |name: String| name.trim_end() == "kthreadd";
    if fs::read_to_string(root.join("proc/2/comm")).is_ok_and(of_kernel) {
        return false;
    }
    FILES.iter().any(|file| root.join(file).exists())
        || fs::read_to_string(root.join("proc/1/cgroup"))
            .is_ok_and(|groups| GROUPS.iter().any(|group| groups.contains(group)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use nix::unistd::geteuid;

    use super::{super::testing::Root, *};

    #[test]
    fn a_file_that_may_not_be_opened_is_named() {
        let dev = Root::new();
        assert_eq!(denied_in(dev.path()), None);
        for file in ["issm0", "rdma_cm", "uverbs0", "uverbs1"] {
            dev.write(file, "");
        }
        assert_eq!(denied_in(dev.path()), None);
        for file in ["issm0", "uverbs1"] {
            let rights = fs::Permissions::from_mode(0o040);
            fs::set_permissions(dev.path().join(file), rights).unwrap();
        }
        assert_eq!(
            all_denied_in(dev.path()),
            None,
            "uverbs0 can still be opened"
        );
        let denied = denied_in(dev.path());
        if geteuid().is_root() {
            // Root has all permissions.
            assert_eq!(denied, None);
        } else {
            let denied = denied.unwrap();
            assert_eq!(denied.file, dev.path().join("uverbs1"));
            assert_eq!(denied.mode, 0o040);
        }
    }

    #[test]
    fn access_text_names_group_and_remedy() {
        let mut denied = Denied {
            file: "/dev/infiniband/uverbs0".into(),
            group: Some("rdma".into()),
            mode: 0o660,
        };
        assert_eq!(
            denied.to_string(),
            "this process may not read and write /dev/infiniband/uverbs0 (mode 0660): \
             add its user to the group rdma (`usermod -aG rdma USER`)"
        );
        for (group, mode) in [("root", 0o660), ("rdma", 0o600)] {
            denied.group = Some(group.into());
            denied.mode = mode;
            assert_eq!(
                denied.to_string(),
                format!(
                    "this process may not read and write /dev/infiniband/uverbs0 \
                     (mode {mode:04o}, group {group}): change its permissions with a udev rule, \
                     such as `KERNEL==\"uverbs*|rdma_cm\", GROUP=\"rdma\", MODE=\"0660\"` in \
                     /etc/udev/rules.d, and add its user to that group"
                )
            );
        }
    }

    #[test]
    fn container_is_detected_by_file_or_control_group() {
        let host = Root::new();
        assert!(!has_container_marks(host.path()));
        host.write("proc/1/cgroup", "0::/init.scope\n");
        assert!(!has_container_marks(host.path()));
        for (file, text) in [
            (".dockerenv", ""),
            ("run/.containerenv", "engine=\"podman-4.3.1\"\n"),
            ("run/systemd/container", "systemd-nspawn\n"),
            ("proc/1/cgroup", "12:cpu:/docker/0123456789ab\n"),
            ("proc/1/cgroup", "0::/kubepods.slice/kubepods-pod1.slice\n"),
        ] {
            let container = Root::new();
            container.write(file, text);
            assert!(has_container_marks(container.path()), "{file}: {text}");
            container.write("proc/2/comm", "sleep\n");
            assert!(has_container_marks(container.path()), "{file}: {text}");
            container.write("proc/2/comm", "kthreadd\n");
            assert!(
                !has_container_marks(container.path()),
                "a virtual machine is not a container"
            );
        }
    }
}
