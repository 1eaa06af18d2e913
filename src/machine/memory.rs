use std::{fs, path::Path};

/// Returns the number of bytes of memory that this process may use: the memory of the machine, or
/// the limit of the process's control groups if it is lower. If the memory of the machine cannot be
/// read, assumes 1 GiB.
pub(crate) fn usable_memory() -> u64 {
    memory_of(Path::new("/"))
}

fn memory_of(root: &Path) -> u64 {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let total = total_memory(&meminfo).unwrap_or(1 << 30);
    group_limit(root).map_or(total, |limit| limit.min(total))
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the lowest memory limit that the control groups of this process set, in cgroup versions
/// 1 and 2.
fn group_limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        match controllers {
            "" => lowest(&root.join("sys/fs/cgroup"), group, "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                let mount = root.join("sys/fs/cgroup/memory");
                lowest(&mount, group, "memory.limit_in_bytes")
            }
            _ => None,
        }
    });
    limits.min()
}

/// Returns the lowest limit of a control group and its ancestors.
///
/// In a container without a cgroup namespace, `group` is the path of the group on the host, but the
/// root of the mount is the group itself. So the limit of the group is in the root of the mount,
/// which is searched as the last ancestor.
fn lowest(mount: &Path, group: &str, file: &str) -> Option<u64> {
    let groups = Path::new(group.trim_start_matches('/')).ancestors();
    let limits = groups.filter_map(|group| {
        let limit = fs::read_to_string(mount.join(group).join(file)).ok()?;
        // In version 2 the file contains "max" if there is no limit. This text is skipped, because
        // it is not a number. In version 1 the file contains a very large number instead.
        limit.trim().parse().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::{super::testing::Root, *};

    const MEMINFO: &str = "MemTotal:        2030956 kB\nMemFree:          123 kB\n";
    const TOTAL: u64 = 2030956 * 1024;

    #[test]
    fn memory_of_the_machine_is_read() {
        assert_eq!(total_memory(MEMINFO), Some(TOTAL));
        assert_eq!(total_memory("MemTotal: many kB"), None);
        assert_eq!(total_memory(""), None);
        let root = Root::new();
        assert_eq!(memory_of(root.path()), 1 << 30);
        root.write("proc/meminfo", MEMINFO);
        assert_eq!(memory_of(root.path()), TOTAL);
        assert!(usable_memory() > 0);
    }

    /// Returns the memory of a machine with these files. The first file lists the process's groups.
    fn machine(files: &[(&str, &str)]) -> u64 {
        let root = Root::new();
        root.write("proc/meminfo", MEMINFO);
        for (file, text) in files {
            root.write(file, text);
        }
        memory_of(root.path())
    }

    #[test]
    fn lowest_limit_of_version_2_counts() {
        let group = ("proc/self/cgroup", "0::/system.slice/server.service\n");
        assert_eq!(machine(&[group]), TOTAL, "no limit can be read");
        let own = "sys/fs/cgroup/system.slice/server.service/memory.max";
        let slice = "sys/fs/cgroup/system.slice/memory.max";
        assert_eq!(machine(&[group, (own, "max\n")]), TOTAL);
        assert_eq!(machine(&[group, (own, "314572800\n")]), 300 << 20);
        let both = [group, (own, "314572800\n"), (slice, "104857600\n")];
        assert_eq!(machine(&both), 100 << 20);
        let both = [group, (own, "max\n"), (slice, "104857600\n")];
        assert_eq!(machine(&both), 100 << 20);
        assert_eq!(machine(&[group, (own, "99999999999999\n")]), TOTAL);
    }

    #[test]
    fn limit_of_a_container_counts() {
        let max = ("sys/fs/cgroup/memory.max", "314572800\n");
        let own_namespace = ("proc/self/cgroup", "0::/\n");
        assert_eq!(machine(&[own_namespace, max]), 300 << 20);
        let name_on_host = ("proc/self/cgroup", "0::/docker/0123456789ab\n");
        assert_eq!(machine(&[name_on_host, max]), 300 << 20);
    }

    #[test]
    fn limit_of_version_1_counts() {
        let groups = "5:cpu,cpuacct:/a\n4:memory:/docker/0123\n0::/\n";
        let groups = ("proc/self/cgroup", groups);
        let limit = "sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes";
        let mount = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        let none = (mount, "9223372036854771712\n");
        assert_eq!(machine(&[groups, none]), TOTAL);
        assert_eq!(machine(&[groups, none, (limit, "314572800\n")]), 300 << 20);
        assert_eq!(machine(&[groups, (mount, "314572800\n")]), 300 << 20);
    }
}
