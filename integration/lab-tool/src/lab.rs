//! The paths of the checkout and of the lab's files.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

#[derive(Debug)]
pub(crate) struct Lab {
    /// The checkout, which is the working directory of the lab and of all commands.
    pub(crate) checkout: PathBuf,
    /// Cargo's target folder, which contains all files of the lab.
    pub(crate) target: PathBuf,
    /// The path of this program.
    pub(crate) tool: PathBuf,
}

impl Lab {
    pub(crate) fn find() -> Result<Self> {
        let checkout = env::var_os("LAB_CHECKOUT").context("start the lab with integration/lab")?;
        let tool = env::current_exe()?;
        // The path of this program is target/quick/lab.
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

    /// Creates the results folder of a host if it does not exist, and returns its path.
    pub(crate) fn results(&self, host: &str) -> Result<PathBuf> {
        let base = env::var_os("LAB_RESULTS_BASE").map(PathBuf::from);
        let dir = base
            .unwrap_or_else(|| self.dir().join("results"))
            .join(host);
        let made = fs::create_dir_all(&dir).and_then(|()| dir.canonicalize());
        made.with_context(|| format!("cannot create {}", dir.display()))
    }

    /// Returns the folder of the guests' kernel, which is an unpacked package.
    pub(crate) fn kernel(&self) -> Result<PathBuf> {
        let kernel = self.dir().join("kernels/default").canonicalize();
        kernel.context("there is no kernel yet; run: integration/lab setup")
    }

    /// Runs the script `guest/kernel`, which adds files to `folder`. The script's command `what`
    /// selects the files: `fetch` adds a kernel to the folder of kernels, and `initramfs` adds the
    /// initramfs to the folder of a kernel. `siw` adds the driver of software iWARP, which some
    /// distributions do not contain.
    pub(crate) fn provide(&self, what: &str, folder: &Path) -> Result<()> {
        let script = self.checkout.join("integration/lab-tool/guest/kernel");
        let status = Command::new(&script).arg(what).arg(folder).status();
        let status = status.with_context(|| format!("cannot run {}", script.display()))?;
        ensure!(status.success(), "{} {what}: {status}", script.display());
        Ok(())
    }
}
