//! The guest's kernel: a package of the distribution, downloaded and unpacked, never installed.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{self, Command},
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    fcntl::{Flock, FlockArg},
    unistd::geteuid,
};

use crate::{initramfs, lab::Lab, vmlinux};

/// Packages that depend on the distribution's current kernel: Debian's, Ubuntu's.
const META_PACKAGES: [&str; 2] = ["linux-image-amd64", "linux-image-generic"];

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Root of the unpacked package.
    pub(crate) dir: PathBuf,
    /// What `uname -r` says in the guest.
    pub(crate) release: String,
}

impl Kernel {
    /// The kernel of package `name`, or the one that was set up first.
    pub(crate) fn open(lab: &Lab, name: Option<&str>) -> Result<Self> {
        let dir = kernels(lab).join(name.unwrap_or("default"));
        let again = name
            .map(|name| format!(" --kernel {name}"))
            .unwrap_or_default();
        ensure!(
            dir.exists(),
            "there is no kernel yet; run: integration/lab setup{again}"
        );
        Self::at(dir.canonicalize()?)
    }

    /// Like [`open`](Self::open), but downloads what is missing.
    pub(crate) fn fetch(lab: &Lab, name: Option<&str>) -> Result<Self> {
        if let Ok(kernel) = Self::open(lab, name) {
            return Ok(kernel);
        }
        fs::create_dir_all(kernels(lab))?;
        // Of several setups at a time, one does the work.
        let lock = File::create(kernels(lab).join(".lock"))?;
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
        let package = match name {
            Some(name) => name.to_owned(),
            None => current_package()?,
        };
        let dir = kernels(lab).join(&package);
        if !dir.exists() {
            unpack(&package, &dir)?;
        }
        if name.is_none() {
            let default = kernels(lab).join("default");
            let _ = fs::remove_file(&default);
            symlink(&package, default)?;
        }
        Self::at(dir)
    }

    fn at(dir: PathBuf) -> Result<Self> {
        let release = only_entry(&dir.join("lib/modules"))?;
        Ok(Self { dir, release })
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.dir.join("kernel")
    }

    /// The initramfs, made again when this tool, whose other half runs in it, is newer.
    pub(crate) fn initramfs(&self, lab: &Lab) -> Result<PathBuf> {
        let path = self.dir.join("initramfs");
        let age = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified());
        if age(&path).ok() < Some(age(&lab.tool)?) {
            let temporary = self.dir.join(format!(".initramfs.{}", process::id()));
            fs::write(&temporary, initramfs::build(&self.dir, &self.release)?)?;
            fs::rename(&temporary, &path)?;
        }
        Ok(path)
    }
}

fn kernels(lab: &Lab) -> PathBuf {
    lab.dir().join("kernels")
}

fn current_package() -> Result<String> {
    for attempt in 0..2 {
        for meta in META_PACKAGES {
            let output = Command::new("apt-cache").args(["depends", meta]).output()?;
            if let Some(package) = image_dependency(&String::from_utf8_lossy(&output.stdout)) {
                return Ok(package);
            }
        }
        if attempt == 0 {
            // A fresh container has no package lists.
            eprintln!("lab: updating the package lists");
            as_root(&["apt-get", "update", "-q"])?;
        }
    }
    bail!(
        "the package archive has neither {}",
        META_PACKAGES.join(" nor ")
    );
}

/// The kernel image that a meta package stands for, from what `apt-cache depends` prints.
fn image_dependency(listing: &str) -> Option<String> {
    listing
        .lines()
        .filter_map(|line| {
            line.trim_start_matches([' ', '|'])
                .strip_prefix("Depends: ")
        })
        .find(|package| {
            let version = package.strip_prefix("linux-image-");
            version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
        })
        .map(str::to_owned)
}

/// `package` and the packages that hold the rest of it, where a distribution has split it.
fn parts(package: &str) -> Vec<String> {
    let version = package
        .trim_start_matches("linux-image-")
        .trim_start_matches("unsigned-");
    let split = ["linux-modules", "linux-modules-extra", "linux-binary"];
    let rest = split.map(|part| format!("{part}-{version}"));
    let rest = rest.into_iter().filter(|part| is_in_archive(part));
    [package.to_owned()].into_iter().chain(rest).collect()
}

fn is_in_archive(package: &str) -> bool {
    let show = Command::new("apt-cache").args(["show", package]).output();
    show.is_ok_and(|show| show.status.success() && !show.stdout.is_empty())
}

/// Downloads packages into a folder, and unpacks them there.
pub(crate) fn unpack_packages(packages: &[String], dir: &Path) -> Result<()> {
    eprintln!("lab: downloading {}", packages.join(", "));
    // The user that apt-get would rather be cannot write to our folder.
    let unsandboxed = ["-o", "APT::Sandbox::User=root"];
    checked(
        Command::new("apt-get")
            .args(["download", "-q", "-q"])
            .args(unsandboxed)
            .args(packages)
            .current_dir(dir),
    )
    .context("cannot download them; are they in the package archive?")?;
    eprintln!("lab: unpacking them");
    let downloads: Vec<_> = fs::read_dir(dir)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    for package in downloads
        .iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "deb"))
    {
        checked(Command::new("dpkg-deb").arg("-x").arg(package).arg(dir))?;
        fs::remove_file(package)?;
    }
    Ok(())
}

/// Unpacks into a folder beside `dir` that gets its name only when it is complete.
fn unpack(package: &str, dir: &Path) -> Result<()> {
    let partial = dir.with_file_name(".partial");
    if partial.exists() {
        // An earlier setup was interrupted.
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir(&partial)?;
    unpack_into(package, &partial)?;
    Ok(fs::rename(&partial, dir)?)
}

fn unpack_into(package: &str, dir: &Path) -> Result<()> {
    unpack_packages(&parts(package), dir)?;
    // Packages and kmod differ in where modules are, so let both names lead there.
    for (name, target) in [("lib", "usr/lib"), ("usr/lib/modules", "../../lib/modules")] {
        if !dir.join(name).exists() && dir.join(name).parent().is_some_and(Path::exists) {
            symlink(target, dir.join(name))?;
        }
    }
    let release = only_entry(&dir.join("lib/modules"))?;
    checked(Command::new("depmod").arg("-b").arg(dir).arg(&release))?;
    let compressed = fs::read(dir.join("boot").join(format!("vmlinuz-{release}")))?;
    let image = vmlinux::extract(&compressed).unwrap_or(compressed);
    fs::write(dir.join("kernel"), image)?;
    Ok(())
}

fn only_entry(dir: &Path) -> Result<String> {
    let mut entries = fs::read_dir(dir).with_context(|| format!("{}", dir.display()))?;
    let entry = entries
        .next()
        .with_context(|| format!("{} is empty", dir.display()))??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

fn as_root(argv: &[&str]) -> Result<()> {
    let mut command = Command::new(argv[0]);
    if !geteuid().is_root() {
        command = Command::new("sudo");
        command.arg(argv[0]);
    }
    checked(command.args(&argv[1..]))
}

pub(crate) fn checked(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Our stdout is for results.
    let status = command
        .stdout(io::stderr())
        .status()
        .with_context(|| format!("cannot run {name}"))?;
    ensure!(status.success(), "{name}: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_package_leads_to_an_image() {
        let debian = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        assert_eq!(
            image_dependency(debian).unwrap(),
            "linux-image-6.1.0-56-amd64"
        );
        let ubuntu = "linux-image-generic\n  Depends: linux-firmware\n |Depends: linux-image-6.8.0-31-generic\n";
        assert_eq!(
            image_dependency(ubuntu).unwrap(),
            "linux-image-6.8.0-31-generic"
        );
        assert_eq!(
            image_dependency("linux-image-generic\n  Depends: linux-image-virtual\n"),
            None
        );
    }
}
