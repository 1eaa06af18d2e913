//! The driver of software iWARP, which not every distribution's kernel has: built from the kernel
//! source that the distribution offers, with what it offers to build modules. None of that is
//! installed.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};

use crate::kernel::{Kernel, checked, unpack_packages};

/// Where the driver is in the kernel's source.
const SOURCE: &str = "drivers/infiniband/sw/siw";

/// Builds the driver for `kernel`, where it is missing.
pub(crate) fn provide(kernel: &Kernel) -> Result<()> {
    if is_there(kernel)? {
        return Ok(());
    }
    let lock = File::create(kernel.dir.join(".siw-lock"))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    if is_there(kernel)? {
        return Ok(());
    }
    let folder = kernel.dir.join(".siw");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir(&folder)?;
    build(kernel, &folder).context("cannot build the driver siw")?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn is_there(kernel: &Kernel) -> Result<bool> {
    let known = Command::new("modprobe")
        .arg("-d")
        .arg(&kernel.dir)
        .args(["-S", &kernel.release, "--show-depends", "siw"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("cannot run modprobe")?;
    Ok(known.success())
}

fn build(kernel: &Kernel, folder: &Path) -> Result<()> {
    let headers = format!("linux-headers-{}", kernel.release);
    let mut packages = dependencies(&headers)?;
    packages.push(format!("linux-source-{}", series(&kernel.release)));
    unpack_packages(&packages, folder)?;

    eprintln!("lab: building siw for {}", kernel.release);
    let sources = folder.join("usr/src");
    let archive = fs::read_dir(&sources)?
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().contains(".tar."))
        .context("there is no source")?;
    let source = folder.join("source");
    fs::create_dir(&source)?;
    checked(
        Command::new("tar")
            .arg("-xf")
            .arg(archive.path())
            .arg("-C")
            .arg(&source)
            .args(["--strip-components=1", "--wildcards"])
            .arg(format!("*/{SOURCE}/*")),
    )?;
    // It says where the packages would be if they were installed.
    let makefile = sources.join(&headers).join("Makefile");
    let includes = fs::read_to_string(&makefile)?;
    let here = sources.display().to_string();
    fs::write(&makefile, includes.replace("/usr/src", &here))?;
    let source = source.join(SOURCE);
    checked(
        Command::new("make")
            .arg("-s")
            .arg("-C")
            .arg(sources.join(&headers))
            .arg(format!("M={}", source.display()))
            .args(["CONFIG_RDMA_SIW=m", "modules"]),
    )?;
    let module = source.join("siw.ko");
    checked(Command::new("strip").arg("-g").arg(&module))?;
    let extra = kernel
        .dir
        .join("lib/modules")
        .join(&kernel.release)
        .join("extra");
    fs::create_dir_all(&extra)?;
    fs::copy(module, extra.join("siw.ko"))?;
    checked(
        Command::new("depmod")
            .arg("-b")
            .arg(&kernel.dir)
            .arg(&kernel.release),
    )
}

/// A package of headers, and those that it takes to build a module with it.
fn dependencies(headers: &str) -> Result<Vec<String>> {
    let output = Command::new("apt-cache")
        .args(["depends", "--recurse", "--no-recommends", "--no-suggests"])
        .args([
            "--no-conflicts",
            "--no-breaks",
            "--no-replaces",
            "--no-enhances",
        ])
        .arg(headers)
        .output()
        .context("cannot run apt-cache")?;
    let packages = of_the_kernel(&String::from_utf8_lossy(&output.stdout));
    ensure!(
        !packages.is_empty(),
        "the package archive does not have {headers}"
    );
    Ok(packages)
}

/// Those that belong to a kernel, of what `apt-cache depends --recurse` prints: each at the
/// beginning of a line, and what it depends on below.
fn of_the_kernel(listing: &str) -> Vec<String> {
    let parts = ["linux-headers-", "linux-kbuild-", "linux-compiler-"];
    listing
        .lines()
        .filter(|line| parts.iter().any(|part| line.starts_with(part)))
        .map(str::to_owned)
        .collect()
}

/// The kernel series, which the package of its source is named after: 6.1 of 6.1.0-56-amd64.
fn series(release: &str) -> &str {
    let end = release.match_indices('.').nth(1).map(|(at, _)| at);
    &release[..end.unwrap_or(release.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_takes_to_build_a_module_is_found() {
        let listing = "linux-headers-6.1.0-56-amd64\n  Depends: linux-headers-6.1.0-56-common\n\
                       linux-headers-6.1.0-56-common\nlinux-kbuild-6.1\n  Depends: libc6\nlibc6\n";
        assert_eq!(
            of_the_kernel(listing),
            [
                "linux-headers-6.1.0-56-amd64",
                "linux-headers-6.1.0-56-common",
                "linux-kbuild-6.1"
            ]
        );
    }

    #[test]
    fn a_release_is_of_a_series() {
        assert_eq!(series("6.1.0-56-amd64"), "6.1");
        assert_eq!(series("6.12.57+deb13-amd64"), "6.12");
    }
}
