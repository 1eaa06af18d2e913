//! The initramfs: a static busybox, `guest/init`, and the modules, in the order to load them.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

const INIT: &[u8] = include_bytes!("../guest/init");

/// Commands that `guest/init` uses.
const APPLETS: [&str; 10] = [
    "cat",
    "chmod",
    "hostname",
    "insmod",
    "ln",
    "mkdir",
    "mount",
    "sh",
    "switch_root",
    "umount",
];

/// First what the shared folders need, then the network and RDMA.
const MODULES: [&str; 9] = [
    "virtio_pci",
    "9p",
    "9pnet_virtio",
    "virtio_console",
    "virtio_net",
    "crc32_generic",
    "rdma_rxe",
    "rdma_ucm",
    "ib_uverbs",
];

pub(crate) fn build(kernel: &Path, release: &str) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "host", "keep", "modules", "proc", "sys"] {
        archive.add(dir, DIRECTORY, b"");
    }
    archive.add("init", PROGRAM, INIT);
    let busybox =
        fs::read("/bin/busybox").context("busybox is missing; run: integration/lab setup")?;
    archive.add("bin/busybox", PROGRAM, &busybox);
    for applet in APPLETS {
        archive.add(&format!("bin/{applet}"), SYMLINK, b"busybox");
    }
    let mut order = String::new();
    for path in modules(kernel, release)? {
        let file = path.rsplit('/').next().unwrap_or(&path);
        let name = file.split('.').next().unwrap_or(file);
        archive.add(&format!("modules/{name}"), PLAIN, &decompressed(&path)?);
        order += &format!("{name}\n");
    }
    archive.add("modules/list", PLAIN, order.as_bytes());
    Ok(archive.finish())
}

/// Files of all modules, dependencies first, each once.
fn modules(kernel: &Path, release: &str) -> Result<Vec<String>> {
    let output = Command::new("modprobe")
        .arg("-d")
        .arg(kernel)
        .args(["-S", release, "--show-depends", "-a"])
        .args(MODULES)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run modprobe")?;
    ensure!(
        output.status.success(),
        "kernel {release} lacks a module that the lab needs"
    );
    Ok(load_order(&String::from_utf8(output.stdout)?))
}

/// Reads `modprobe --show-depends`, which repeats common dependencies and mentions built-in ones.
fn load_order(listing: &str) -> Vec<String> {
    let mut order: Vec<String> = vec![];
    for path in listing
        .lines()
        .filter_map(|line| line.strip_prefix("insmod "))
    {
        if !order.iter().any(|seen| seen == path.trim()) {
            order.push(path.trim().to_owned());
        }
    }
    order
}

/// Distributions compress modules or not; busybox loads only plain ones.
fn decompressed(path: &str) -> Result<Vec<u8>> {
    let tool = match path.rsplit('.').next() {
        Some("ko") => return fs::read(path).context(path.to_owned()),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => bail!("{path}: unknown compression"),
    };
    let output = Command::new(tool)
        .args(["-dcq", path])
        .stderr(Stdio::inherit())
        .output();
    let output = output.with_context(|| format!("cannot run {tool}"))?;
    ensure!(output.status.success(), "{tool} cannot decompress {path}");
    Ok(output.stdout)
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const PLAIN: u32 = 0o100_644;
const SYMLINK: u32 = 0o120_777;

/// A cpio archive in the one format that the kernel reads, `newc`.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let header = [
            self.entries, // inode
            mode,
            0, // user
            0, // group
            1, // links
            0, // modification time
            content.len() as u32,
            0, // device
            0,
            0, // device that the entry stands for
            0,
            name.len() as u32 + 1,
            0, // checksum
        ];
        self.bytes.extend(b"070701");
        for field in header {
            self.bytes.extend(format!("{field:08x}").into_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, b"");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_first_and_once() {
        let listing =
            "insmod /m/ring.ko \nbuiltin fscache\ninsmod /m/pci.ko.xz \ninsmod /m/ring.ko \n";
        assert_eq!(load_order(listing), ["/m/ring.ko", "/m/pci.ko.xz"]);
    }

    #[test]
    fn archive_entries_are_aligned() {
        let mut archive = Archive::default();
        archive.add("a", PLAIN, b"12345");
        // 110 bytes of header, "a\0", and five bytes of content, each padded to four.
        assert_eq!(archive.bytes.len(), 112 + 8);
        assert_eq!(&archive.bytes[94..102], b"00000002", "length of the name");
        assert_eq!(&archive.bytes[112..117], b"12345");
        assert!(
            archive
                .finish()
                .windows(10)
                .any(|name| name == b"TRAILER!!!")
        );
    }
}
