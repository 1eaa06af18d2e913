//! The guest's kernel, which `guest/kernel` sets up.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Root of the unpacked package.
    pub(crate) dir: PathBuf,
}

impl Kernel {
    /// The kernel of package `name`, or the one that was set up first.
    pub(crate) fn open(lab: &Lab, name: Option<&str>) -> Result<Self> {
        let dir = kernels(lab).join(name.unwrap_or("default"));
        let dir = dir.canonicalize().with_context(|| {
            let again = name.map(|name| format!(" --kernel {name}"));
            format!(
                "there is no kernel yet; run: integration/lab setup{}",
                again.unwrap_or_default()
            )
        })?;
        Ok(Self { dir })
    }

    /// Like [`open`](Self::open), but downloads what is missing.
    pub(crate) fn fetch(lab: &Lab, name: Option<&str>) -> Result<Self> {
        let kernels = kernels(lab);
        let args = [Some(kernels.as_os_str()), name.map(OsStr::new)];
        run(lab, "fetch", args.into_iter().flatten())?;
        Self::open(lab, name)
    }

    /// Makes the initramfs, unless it is newer than its sources.
    pub(crate) fn initramfs(&self, lab: &Lab) -> Result<PathBuf> {
        run(lab, "initramfs", [self.dir.as_os_str()])?;
        Ok(self.dir.join("initramfs"))
    }

    /// Builds the driver of software iWARP, which not every distribution's kernel has.
    pub(crate) fn provide_siw(&self, lab: &Lab) -> Result<()> {
        run(lab, "siw", [self.dir.as_os_str()]).context("cannot build the driver siw")
    }

    /// Returns the release, as `uname -r` prints it in the guest.
    pub(crate) fn release(&self) -> Result<String> {
        let mut entries = fs::read_dir(self.dir.join("lib/modules"))?;
        let entry = entries.next().context("there are no modules")??;
        Ok(entry.file_name().to_string_lossy().into_owned())
    }
}

fn kernels(lab: &Lab) -> PathBuf {
    lab.dir().join("kernels")
}

fn run<'a>(lab: &Lab, what: &str, args: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    let script: &Path = &lab.checkout.join("integration/lab-tool/guest/kernel");
    let status = Command::new(script).arg(what).args(args).status();
    let status = status.with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(status.success(), "{} {what}: {status}", script.display());
    Ok(())
}
