use std::{
    io::Read,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use crate::Result;

/// A program that runs, with its output kept. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    output: Receiver<Vec<u8>>,
}

/// How a program ended, and what it printed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Its status, 128 and the signal's number where it was a signal; `None` when it was killed from here.
    pub(crate) status: Option<i32>,
    pub(crate) output: String,
}

impl Process {
    pub(crate) fn start(argv: &[String]) -> Result<Self> {
        let (program, args) = argv.split_first().ok_or("no program is named")?;
        let mut child = Command::new(program)
            .args(args)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}"))?;
        let (sender, output) = channel();
        forward(child.stdout.take(), sender.clone());
        forward(child.stderr.take(), sender);
        Ok(Self { child, output })
    }

    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits until it ends, and kills it when that takes longer than `limit`.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<Ended> {
        let deadline = Instant::now() + limit;
        let mut output = Vec::new();
        let mut killed = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => output.extend(bytes),
                // Both of its outputs are closed, which is what ending does.
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if killed => break,
                Err(RecvTimeoutError::Timeout) => {
                    killed = true;
                    self.child.kill()?;
                }
            }
        }
        let status = self.child.wait()?;
        Ok(Ended {
            status: (!killed).then(|| code(status)),
            output: String::from_utf8_lossy(&output).into_owned(),
        })
    }
}

fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Reads an output as long as it is open.
fn forward(output: Option<impl Read + Send + 'static>, sender: Sender<Vec<u8>>) {
    let Some(mut output) = output else { return };
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
