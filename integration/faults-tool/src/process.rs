use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use crate::Result;

/// A worker that runs. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts this program as a worker with these arguments.
    pub(crate) fn start(args: &[String]) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .arg("worker")
            .args(args)
            // So that memory that is not in use goes back, and does not count.
            .env("MALLOC_MMAP_THRESHOLD_", "131072")
            .env("MALLOC_ARENA_MAX", "2")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (sender, lines) = channel();
        forward(child.stdout.take(), "", sender.clone());
        forward(child.stderr.take(), "stderr ", sender);
        Ok(Self { child, lines })
    }

    /// Its next line, or how it ended, or that nothing came in this time.
    pub(crate) fn line(&mut self, limit: Duration) -> Result<String> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(format!("line {line}")),
            Err(RecvTimeoutError::Timeout) => Ok("silent".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Ok(format!("ended {}", self.child.wait()?)),
        }
    }

    pub(crate) fn tell(&mut self, line: &str) -> String {
        let told = match &mut self.child.stdin {
            Some(stdin) => stdin.write_all(format!("{line}\n").as_bytes()).is_ok(),
            None => false,
        };
        if told { "done 0" } else { "gone" }.to_owned()
    }

    /// Sends a signal, and waits for the end if that is what it means.
    pub(crate) fn signal(&mut self, name: &str) -> Result<String> {
        let begin = crate::clock::now();
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status()?;
        if !status.success() {
            return Ok(format!("failed {status}"));
        }
        if name == "KILL" {
            self.child.wait()?;
        }
        Ok(format!("done {begin}"))
    }
}

/// Forwards an output, line by line, as long as it is open.
fn forward(
    output: Option<impl Read + Send + 'static>,
    prefix: &'static str,
    sender: Sender<String>,
) {
    let Some(output) = output else { return };
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(format!("{prefix}{line}")).is_err() {
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
