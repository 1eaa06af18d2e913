use std::{fs, path::Path};

use super::Context;

impl Context {
    /// Returns the NUMA node to which the device is attached, as the kernel reports it.
    ///
    /// Returns `None` for software devices. On most hosts with one processor socket, returns `None`
    /// for all devices.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use rdma_verbs::verbs::Context;
    /// # fn main() {}
    /// # fn show(context: &Context) {
    /// if let Some(node) = context.numa_node() {
    ///     println!("start the program with: numactl --cpunodebind={node}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        let file = format!(
            "/sys/class/infiniband/{}/device/numa_node",
            self.device_name()
        );
        read(Path::new(&file))
    }
}

/// Returns the node number in a file of sysfs. Returns `None` if the file cannot be read, or if it
/// contains no valid node number. The kernel writes −1 for a device without a node.
fn read(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn node_is_a_number_that_is_not_negative() {
        let file = env::temp_dir().join(format!("rdma-verbs-numa-{}", process::id()));
        assert_eq!(read(&file), None);
        for (text, node) in [
            ("0\n", Some(0)),
            ("1\n", Some(1)),
            ("-1\n", None),
            ("", None),
            ("node\n", None),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(read(&file), node, "{text:?}");
        }
        fs::remove_file(file).unwrap();
    }
}
