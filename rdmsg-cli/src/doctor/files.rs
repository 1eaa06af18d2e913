use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use nix::unistd::{Gid, Group};

use super::{
    finding::{Finding, as_root, write_line},
    root::Root,
    surroundings::Surroundings,
};

const SUBJECT: &str = "device files";

/// The device files through which programs access the RDMA connection manager and the RDMA devices.
#[derive(Clone, Debug)]
pub(super) struct DeviceFiles(Vec<DeviceFile>);

#[derive(Clone, Debug)]
struct DeviceFile {
    path: String,
    /// The major and minor device numbers, for example `231:192`.
    numbers: String,
    access: Access,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Access {
    Granted,
    Denied {
        mode: u32,
        group: String,
    },
    Missing,
    /// Opening the file failed for another reason, with this error.
    Failed(String),
}

impl DeviceFiles {
    pub(super) fn read(root: &Root) -> Self {
        let verbs = root.names("sys/class/infiniband_verbs");
        let verbs = verbs.into_iter().filter(|name| name.starts_with("uverbs"));
        let mut all: Vec<(String, String)> = verbs
            .map(|name| (format!("sys/class/infiniband_verbs/{name}"), name))
            .collect();
        all.insert(0, ("sys/class/misc/rdma_cm".into(), "rdma_cm".into()));
        let files = all.into_iter().filter_map(|(device, name)| {
            // Skip a device that the kernel does not have: it needs no device file.
            let numbers = root.text(format!("{device}/dev"))?;
            let path = format!("dev/infiniband/{name}");
            Some(DeviceFile {
                access: Access::of(&root.path(&path)),
                path: format!("/{path}"),
                numbers,
            })
        });
        Self(files.collect())
    }

    /// Returns whether this process can open all files.
    pub(super) fn are_usable(&self) -> bool {
        self.0.iter().all(|file| file.access == Access::Granted)
    }

    /// Returns no finding if the kernel has none of the devices. If all files are usable, returns
    /// one finding of state `Ok`. Otherwise, returns the findings about the unusable files.
    pub(super) fn judge(&self, around: &Surroundings) -> Vec<Finding> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let list: Vec<&str> = self.0.iter().map(|file| &*file.path).collect();
        if self.are_usable() {
            let what = format!("this user may read and write {}", list.join(", "));
            return vec![Finding::ok(SUBJECT, what)];
        }
        let findings = [self.judge_missing(around), self.judge_denied(around)];
        let mut findings: Vec<Finding> = findings.into_iter().flatten().collect();
        for file in &self.0 {
            if let Access::Failed(error) = &file.access {
                let what = format!("cannot open {}: {error}", file.path);
                findings.push(Finding::error(SUBJECT, what).hint("`dmesg` may show the cause"));
            }
        }
        findings
    }

    fn judge_missing(&self, around: &Surroundings) -> Option<Finding> {
        let missing = self.0.iter().filter(|file| file.access == Access::Missing);
        let missing: Vec<&DeviceFile> = missing.collect();
        if missing.is_empty() {
            return None;
        }
        let names: Vec<&str> = missing.iter().map(|file| &*file.path).collect();
        let what = format!(
            "the kernel has the devices, but these files are missing: {}",
            names.join(", ")
        );
        let finding = Finding::error(SUBJECT, what)
            .because("programs use the connection manager and devices through these files");
        if around.is_container() {
            return Some(finding.hint(in_container(&self.0)));
        }
        let make = missing.iter().map(|file| {
            let numbers = file.numbers.replace(':', " ");
            as_root(&format!("mknod -m 666 {} c {numbers}", file.path))
        });
        Some(
            finding
                .command(as_root("mkdir -p /dev/infiniband"))
                .commands(make),
        )
    }

    fn judge_denied(&self, around: &Surroundings) -> Option<Finding> {
        let denied = self.0.iter().filter_map(|file| match &file.access {
            Access::Denied { mode, group } => Some((&*file.path, *mode, group)),
            Access::Granted | Access::Missing | Access::Failed(_) => None,
        });
        let denied: Vec<_> = denied.collect();
        let (_, mode, group) = *denied.first()?;
        let names: Vec<&str> = denied.iter().map(|(path, ..)| *path).collect();
        let list = names.join(", ");
        let what =
            format!("this user may not read and write {list} (mode {mode:04o}, group {group})");
        let finding = Finding::error(SUBJECT, what)
            .because("programs use the connection manager and devices through these files");
        if around.is_container() {
            return Some(finding.hint(in_container(&self.0)));
        }
        // If the file's group has access, suggest adding the user to the group, unless the group is
        // root.
        if mode & 0o060 == 0o060 && group != "root" {
            return Some(
                finding
                    .command(as_root(&format!("usermod -aG {group} $USER")))
                    .hint("log in again, or run `newgrp`, before the group takes effect"),
            );
        }
        let rule = "KERNEL==\"uverbs*|rdma_cm\", MODE=\"0666\"";
        Some(
            finding
                .command(as_root(&format!("chmod 666 {}", names.join(" "))))
                .keep(write_line(
                    &rule.replace('\'', ""),
                    "/etc/udev/rules.d/90-rdmsg.rules",
                )),
        )
    }
}

/// Returns a hint on how to pass the files to a container.
fn in_container(files: &[DeviceFile]) -> String {
    let options = files.iter().map(|file| format!("--device={}", file.path));
    let options: Vec<String> = options.collect();
    format!(
        "this is a container: run it with `{}` (Kubernetes: an RDMA device plugin adds them to \
         pods)",
        options.join(" ")
    )
}

impl Access {
    fn of(path: &Path) -> Self {
        let Err(error) = fs::File::options().read(true).write(true).open(path) else {
            return Self::Granted;
        };
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::PermissionDenied => {
                let metadata = fs::metadata(path).ok();
                let group = |gid: u32| match Group::from_gid(Gid::from_raw(gid)) {
                    Ok(Some(group)) => group.name,
                    Ok(None) | Err(_) => gid.to_string(),
                };
                Self::Denied {
                    mode: metadata.as_ref().map_or(0, |it| it.mode() & 0o7777),
                    group: metadata.map_or_else(|| "unknown".into(), |it| group(it.gid())),
                }
            }
            _ => Self::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{distribution::Distribution, finding::State, root::testing::Machine},
        *,
    };

    fn machine() -> Machine {
        Machine::new()
            .file("sys/class/misc/rdma_cm/dev", "10:58\n")
            .file("sys/class/infiniband_verbs/abi_version", "6\n")
            .file("sys/class/infiniband_verbs/uverbs0/dev", "231:192\n")
            .file("dev/infiniband/rdma_cm", "")
    }

    fn host() -> Surroundings {
        Surroundings::of(Distribution::Debian, false)
    }

    #[test]
    fn missing_file_is_created_with_kernels_numbers() {
        let files = DeviceFiles::read(&machine().root());
        let findings = files.judge(&host());
        assert_eq!(findings.len(), 1);
        let node = as_root("mknod -m 666 /dev/infiniband/uverbs0 c 231 192");
        assert_eq!(findings[0].commands[1], node);
        let findings = files.judge(&Surroundings::of(Distribution::Debian, true));
        let hint = findings[0].hint.as_ref().unwrap();
        assert!(
            hint.contains("--device=/dev/infiniband/rdma_cm --device=/dev/infiniband/uverbs0"),
            "{hint}"
        );
    }

    #[test]
    fn usable_or_absent_files_are_no_problem() {
        let machine = machine().file("dev/infiniband/uverbs0", "");
        let findings = DeviceFiles::read(&machine.root()).judge(&host());
        assert_eq!(findings[0].state, State::Ok);
        let none = DeviceFiles::read(&Machine::new().root());
        assert!(none.judge(&host()).is_empty());
    }

    #[test]
    fn rights_come_from_the_group_of_the_file() {
        let mut files = DeviceFiles::read(&machine().root());
        let mut commands = |mode, group: &str| {
            files.0[1].access = Access::Denied {
                mode,
                group: group.into(),
            };
            files.judge(&host()).remove(0).commands
        };
        assert_eq!(commands(0o660, "rdma"), [as_root("usermod -aG rdma $USER")]);
        let chmod = [as_root("chmod 666 /dev/infiniband/uverbs0")];
        assert_eq!(commands(0o660, "root"), chmod);
        assert_eq!(commands(0o600, "rdma"), chmod);
    }
}
