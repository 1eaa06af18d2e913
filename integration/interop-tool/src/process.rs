use std::{
    io::Read,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use crate::Result;

/// How long to wait for what a program had printed when it was killed, as long as its outputs are
/// open.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A program that runs, with its output kept. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    output: Receiver<Vec<u8>>,
    /// What it has printed so far.
    printed: Vec<u8>,
    /// Whether it was killed from here, while it ran.
    killed: bool,
}

/// How a program ended, and what it printed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Its status, 128 and the signal's number where it was a signal; `None` when it was killed from here.
    pub(crate) status: Option<i32>,
    pub(crate) output: String,
}

/// What came of waiting for a program to print something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It has.
    Said,
    /// It has ended without.
    Ended,
    /// It has not in time.
    Late,
}

impl Heard {
    /// As one host tells another.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Said => "said",
            Self::Ended => "ended",
            Self::Late => "late",
        }
    }

    pub(crate) fn from_str(text: &str) -> Option<Self> {
        let all = [Self::Said, Self::Ended, Self::Late];
        all.into_iter().find(|heard| heard.as_str() == text)
    }
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
        Ok(Self {
            child,
            output,
            printed: Vec::new(),
            killed: false,
        })
    }

    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits until it has printed this.
    pub(crate) fn hear(&mut self, text: &str, limit: Duration) -> Heard {
        let deadline = Instant::now() + limit;
        loop {
            let printed = self.printed.windows(text.len().max(1));
            if text.is_empty() || printed.into_iter().any(|part| part == text.as_bytes()) {
                return Heard::Said;
            }
            match self.print(deadline) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return Heard::Ended,
                Err(RecvTimeoutError::Timeout) => return Heard::Late,
            }
        }
    }

    /// Takes what it prints next. It is disconnected when both of its outputs are closed, which is
    /// what ending does.
    fn print(&mut self, deadline: Instant) -> Result<(), RecvTimeoutError> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.printed.extend(self.output.recv_timeout(left)?);
        Ok(())
    }

    /// Waits until it ends, and kills it when that takes longer than `limit`.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<Ended> {
        let mut deadline = Instant::now() + limit;
        let mut given_up = false;
        loop {
            match self.print(deadline) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                // What it started itself may keep its outputs open.
                Err(RecvTimeoutError::Timeout) if given_up => break,
                Err(RecvTimeoutError::Timeout) => {
                    given_up = true;
                    self.killed = self.child.try_wait()?.is_none();
                    self.child.kill()?;
                    deadline = Instant::now() + LAST_WORDS;
                }
            }
        }
        let status = self.child.wait()?;
        Ok(Ended {
            status: (!self.killed).then(|| code(status)),
            output: String::from_utf8_lossy(&self.printed).into_owned(),
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
