use std::thread::available_parallelism;

use anyhow::Result;

use crate::Process;

/// Processes that keep all processors busy. Dropping the `Load` kills them.
#[derive(Debug)]
pub struct Load {
    _processes: Vec<Process>,
}

impl Load {
    /// Starts `each` processes per processor.
    ///
    /// # Errors
    ///
    /// If a process cannot be started.
    pub fn start(each: usize) -> Result<Self> {
        // If a signal kills this process, the `Load` is not dropped. Each loop therefore ends when
        // its parent, this process, no longer exists.
        let busy = ["sh", "-c", "while kill -0 $PPID 2>/dev/null; do :; done"];
        let count = each * available_parallelism()?.get();
        let processes = (0..count).map(|_| Process::start(&busy));
        Ok(Self {
            _processes: processes.collect::<Result<_>>()?,
        })
    }
}
