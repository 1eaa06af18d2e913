use std::{
    fmt,
    io::Read,
    process::{Child as Process, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// A program that runs, with its output kept. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    output: Receiver<Vec<u8>>,
}

/// How a program ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` when it was killed, because its time was over.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) output: String,
}

impl Child {
    pub(crate) fn start(argv: &[String]) -> Result<Self> {
        let mut process = Command::new(&argv[0])
            .args(&argv[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", argv[0]))?;
        let (sender, output) = channel();
        forward(process.stdout.take(), sender.clone());
        forward(process.stderr.take(), sender);
        Ok(Self { process, output })
    }

    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_some())
    }

    /// Waits until it ends, and kills it when that takes longer than `limit`.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<Ended> {
        let deadline = Instant::now() + limit;
        let mut output = Vec::new();
        let in_time = loop {
            match self
                .output
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(bytes) => output.extend(bytes),
                // Both ends of its output are closed, which is what ending does.
                Err(RecvTimeoutError::Disconnected) => break true,
                Err(RecvTimeoutError::Timeout) => break false,
            }
        };
        if !in_time {
            self.process.kill()?;
        }
        let status = self.process.wait()?;
        Ok(Ended {
            status: in_time.then_some(status),
            output: String::from_utf8_lossy(&output).into_owned(),
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Ended {
    pub(crate) fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// The way it ended, and the last line that it printed.
impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{status}")?,
            None => f.write_str("killed")?,
        }
        match self.output.lines().rfind(|line| !line.trim().is_empty()) {
            Some(line) => write!(f, ": {}", line.trim()),
            None => Ok(()),
        }
    }
}

/// Sends on what comes from `pipe`, until its other end is closed.
fn forward(pipe: Option<impl Read + Send + 'static>, to: Sender<Vec<u8>>) {
    let mut pipe = pipe.expect("the output is piped");
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            if to.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Child {
        Child::start(&["sh".into(), "-c".into(), line.into()]).unwrap()
    }

    #[test]
    fn status_and_output_are_kept() {
        let ended = shell("echo one; echo two >&2; exit 3")
            .finish(Duration::from_secs(60))
            .unwrap();
        assert!(!ended.succeeded());
        assert!(ended.output.contains("one\n") && ended.output.contains("two\n"));
        assert_eq!(ended.status.unwrap().code(), Some(3));
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let ended = shell("echo begun; exec sleep 1000")
            .finish(Duration::from_millis(300))
            .unwrap();
        assert_eq!(ended.to_string(), "killed: begun");
    }
}
