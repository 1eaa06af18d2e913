use std::{
    process::{Child, Command},
    thread::available_parallelism,
};

use anyhow::{Context, Result};

/// Processes that keep all processors busy. Dropping the `Load` kills them.
#[derive(Debug)]
pub struct Load(Vec<Child>);

impl Load {
    /// Starts `each` processes per processor.
    ///
    /// # Errors
    ///
    /// If a process cannot be started.
    pub fn start(each: usize) -> Result<Self> {
        // If a signal kills this process, the `Load` is not dropped. Each loop therefore ends when
        // its parent, this process, no longer exists.
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
            // Ignore the errors: both calls fail only if the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
