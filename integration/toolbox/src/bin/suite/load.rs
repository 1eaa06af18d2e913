use std::{
    process::{Child, Command},
    thread::available_parallelism,
};

use anyhow::{Context, Result};

/// Other processes that use all processors, until it is dropped.
pub(crate) struct Load(Vec<Child>);

impl Load {
    /// Starts one process for each processor.
    pub(crate) fn start() -> Result<Self> {
        // It ends by itself if this process is killed.
        let busy = "while kill -0 $PPID 2>/dev/null; do :; done";
        let mut load = Self(Vec::new());
        for _ in 0..available_parallelism()?.get() {
            let child = Command::new("sh").args(["-c", busy]).spawn();
            load.0.push(child.context("cannot run sh")?);
        }
        Ok(load)
    }

    pub(crate) fn processes(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only if it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
