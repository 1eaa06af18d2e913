//! Where everything is.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

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
        let target = tool
            .ancestors()
            .nth(2)
            .context("the lab is not in a target folder")?;
        Ok(Self {
            checkout: checkout.into(),
            target: target.into(),
            tool,
        })
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.target.join("lab")
    }

    /// The folder of results of each host, below `base` if it was chosen, or `LAB_RESULTS_BASE`.
    pub(crate) fn results(&self, base: Option<&Path>, host: &str) -> Result<PathBuf> {
        let default = match env::var_os("LAB_RESULTS_BASE") {
            Some(base) => base.into(),
            None => self.dir().join("results"),
        };
        let dir = base.unwrap_or(&default).join(host);
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(dir.canonicalize()?)
    }
}
