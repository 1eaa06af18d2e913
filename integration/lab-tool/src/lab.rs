//! Where everything is.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

#[derive(Debug)]
pub(crate) struct Lab {
    /// The checkout: where commands run.
    pub(crate) checkout: PathBuf,
    /// Cargo's target folder, in which the lab keeps all its files.
    pub(crate) target: PathBuf,
    /// This program.
    pub(crate) tool: PathBuf,
}

impl Lab {
    pub(crate) fn find() -> Result<Self> {
        let checkout = env::var_os("LAB_CHECKOUT").context("start the lab with integration/lab")?;
        let tool = env::current_exe()?;
        // target/quick/lab
        let target = tool.ancestors().nth(2);
        let target = target.context("the lab is not in a target folder")?;
        Ok(Self {
            checkout: checkout.into(),
            target: target.into(),
            tool,
        })
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.target.join("lab")
    }

    /// The folder of results of a host.
    pub(crate) fn results(&self, host: &str) -> Result<PathBuf> {
        let base = env::var_os("LAB_RESULTS_BASE").map(PathBuf::from);
        let dir = base
            .unwrap_or_else(|| self.dir().join("results"))
            .join(host);
        let made = fs::create_dir_all(&dir).and_then(|()| dir.canonicalize());
        made.with_context(|| format!("cannot create {}", dir.display()))
    }

    /// The unpacked package of the guests' kernel.
    pub(crate) fn kernel(&self) -> Result<PathBuf> {
        let kernel = self.dir().join("kernels/default").canonicalize();
        kernel.context("there is no kernel yet; run: integration/lab setup")
    }

    /// Has `guest/kernel` complete a folder: `fetch` adds a kernel to the folder of kernels. To the
    /// folder of a kernel `initramfs` adds the first file system, and `siw` the driver of software
    /// iWARP, which not every distribution's kernel has.
    pub(crate) fn provide(&self, what: &str, folder: &Path) -> Result<()> {
        let script = self.checkout.join("integration/lab-tool/guest/kernel");
        let status = Command::new(&script).arg(what).arg(folder).status();
        let status = status.with_context(|| format!("cannot run {}", script.display()))?;
        ensure!(status.success(), "{} {what}: {status}", script.display());
        Ok(())
    }
}
