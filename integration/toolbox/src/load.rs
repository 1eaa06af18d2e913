use std::{
    process::{Child, Command},
    thread::available_parallelism,
};

use anyhow::{Context, Result};

/// Busy processes on all processors. Dropping it ends them.
#[derive(Debug)]
pub struct Load(Vec<Child>);

impl Load {
    /// Starts this number of processes for each processor.
    ///
    /// # Errors
    ///
    /// If a process cannot be started.
    pub fn start(each: usize) -> Result<Self> {
        // The loop ends if this process is killed.
        let busy = "while kill -0 $PPID 2>/dev/null; do :; done";
        let mut load = Self(Vec::new());
        for _ in 0..each * available_parallelism()?.get() {
            let child = Command::new("sh").args(["-c", busy]).spawn();
            load.0.push(child.context("cannot run sh")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
