use std::{
    collections::VecDeque,
    fmt, fs, mem,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use anyhow::{Result, anyhow, bail, ensure};
use nix::sys::signal::Signal;
use thiserror::Error;

use crate::{
    Deadline,
    link::Link,
    wire::{Frame, Job},
};

/// The time limit for a program to end after SIGKILL.
const DEATH: Duration = Duration::from_secs(15);

/// The time limit for the agent to answer a request.
pub(crate) const SILENCE: Duration = Duration::from_secs(600);

/// A program that runs on this host or on another one, and its output. Dropping the `Process` kills
/// the program.
#[derive(Debug)]
pub struct Process {
    link: Link,
    number: u32,
    /// The program's process id on its host.
    id: u32,
    frames: Receiver<Frame>,
    printed: Vec<u8>,
    /// The bytes after the last newline, for stdout and for stderr.
    partial_lines: [Vec<u8>; 2],
    lines: VecDeque<Line>,
    /// The agent's answer to the most recent request, or `None` until the answer arrives. The
    /// answer is the time at which the request took effect, in milliseconds since 1970, or the
    /// reason why the request failed.
    answer: Option<Result<u64, String>>,
    status: Option<i32>,
    /// Whether the connection to the agent is lost.
    lost: bool,
}

/// The error if a program still runs some time after SIGKILL: a thread of the program is blocked in
/// the kernel, and the host may have to be restarted.
#[derive(Debug, Error)]
#[error("program {id} still runs after SIGKILL; its kernel stack: {stack}")]
pub struct Unkillable {
    id: u32,
    /// The kernel stack of the main thread, if the program runs on this host.
    stack: String,
}

/// One line that a program has printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Printed to stdout.
    Out(String),
    /// Printed to stderr.
    Err(String),
}

/// The exit status and the complete output of a program that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit status, or 128 plus the number of the signal that ended the program. `None` if
    /// [`Process::kill`] ended the program.
    pub status: Option<i32>,
    /// The text of stdout and stderr in the order of arrival.
    pub output: String,
}

impl Process {
    /// Starts the program `argv[0]` on this host. The other elements of `argv` are its arguments.
    /// The program has no stdin and does not inherit RUST_LOG.
    ///
    /// # Errors
    ///
    /// If the program does not exist or cannot be run.
    pub fn start(argv: &[impl AsRef<str>]) -> Result<Self> {
        Self::on(&Link::here(), argv, false)
    }

    /// Starts a program on this host with a stdin, to which [`tell`](Self::tell) writes.
    ///
    /// # Errors
    ///
    /// If the program does not exist or cannot be run.
    pub fn start_with_stdin(argv: &[impl AsRef<str>]) -> Result<Self> {
        Self::on(&Link::here(), argv, true)
    }

    pub(crate) fn on(link: &Link, argv: &[impl AsRef<str>], has_stdin: bool) -> Result<Self> {
        let (number, frames) = link.start(job(argv, has_stdin))?;
        let mut this = Self {
            link: link.clone(),
            number,
            id: 0,
            frames,
            printed: Vec::new(),
            partial_lines: [const { Vec::new() }; 2],
            lines: VecDeque::new(),
            answer: None,
            status: None,
            lost: false,
        };
        let began = this.answer();
        // If the program was not started, set `lost`, so that `drop` does not try to kill a
        // process.
        this.lost = began.is_err();
        began.map(|_| this)
    }

    /// Returns the program's process id on its host.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits for up to `limit` until the program has printed `text` to stdout or stderr. Returns
    /// false if the program has not printed the text within this time, or has ended without
    /// printing it.
    pub fn wait_for_text(&mut self, text: &str, limit: impl Into<Deadline>) -> bool {
        let mut deadline = limit.into();
        while !contains(&self.printed, text.as_bytes()) {
            if self.is_over() || !self.receive(deadline.left()) && deadline.is_over() {
                return false;
            }
        }
        true
    }

    /// Returns the next line that the program prints. Returns `None` if the program prints no line
    /// within `limit`, or if the program has ended and all its lines have been returned.
    pub fn line(&mut self, limit: impl Into<Deadline>) -> Option<Line> {
        let mut deadline = limit.into();
        while self.lines.is_empty() && !self.is_over() {
            if !self.receive(deadline.left()) && deadline.is_over() {
                return None;
            }
        }
        self.lines.pop_front()
    }

    /// Writes a line to the program's stdin. Returns true if the line was sent to the agent. The
    /// line is not sent if the program is known to have ended, or if the connection to the agent is
    /// lost.
    pub fn tell(&mut self, line: &str) -> bool {
        let line = Frame::Tell(format!("{line}\n").into_bytes());
        self.status.is_none() && self.link.send(self.number, &line).is_ok()
    }

    /// Sends a signal to the program. Does not wait for the agent's answer.
    ///
    /// # Errors
    ///
    /// If the connection to the agent is lost.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.link.send(self.number, &Frame::Signal(signal as i32))
    }

    /// Sends a signal to the program and waits for the agent's answer. Returns the time at which
    /// the signal was sent, in milliseconds since 1970 by the clock of the program's host.
    pub(crate) fn signal_at(&mut self, signal: Signal) -> Result<u64> {
        self.answer = None;
        self.signal(signal)?;
        self.answer()
    }

    /// Waits until the program has ended. Returns `None` if the program still runs after `limit`.
    ///
    /// # Errors
    ///
    /// If the connection to the agent is lost.
    pub fn end(&mut self, limit: impl Into<Deadline>) -> Result<Option<Ended>> {
        let mut deadline = limit.into();
        while !self.is_over() && !deadline.is_over() {
            self.receive(deadline.left());
        }
        // Receive the frames that have already arrived, but for at most 100 ms, because a program
        // can print continuously.
        let mut moment = Deadline::exactly_after(Duration::from_millis(100));
        while !moment.is_over() && self.receive(Duration::ZERO) {}
        self.ended()
    }

    /// Returns the exit status and the output if the program is known to have ended. Receives no
    /// report of the agent.
    ///
    /// # Errors
    ///
    /// If the connection to the agent was lost before the program has ended.
    pub fn ended(&self) -> Result<Option<Ended>> {
        self.check()?;
        Ok(self.status.map(|status| Ended {
            status: Some(status),
            output: self.printed(),
        }))
    }

    /// Returns the output that the agent has reported until now.
    pub(crate) fn printed(&self) -> String {
        String::from_utf8_lossy(&self.printed).into_owned()
    }

    /// Kills the program if it still runs. Returns the output of the program. If the program ended
    /// by itself, also returns its exit status.
    ///
    /// # Errors
    ///
    /// If the connection to the agent is lost. [`Unkillable`] if the program does not end within 15
    /// s (longer on a slow machine) after SIGKILL.
    pub fn kill(&mut self) -> Result<Ended> {
        if let Some(ended) = self.end(Duration::ZERO)? {
            return Ok(ended);
        }
        // Ignore the error: sending fails only if the connection to the agent is lost. In this
        // case, `end` returns an error below.
        let _ = self.signal(Signal::SIGKILL);
        let Some(ended) = self.end(DEATH)? else {
            let id = self.id;
            let stack = match self.link.is_here() {
                true => fs::read_to_string(format!("/proc/{id}/stack"))
                    .unwrap_or_else(|error| error.to_string()),
                false => "unknown, because the program runs on another host".to_owned(),
            };
            bail!(Unkillable { id, stack })
        };
        let status = None;
        Ok(Ended { status, ..ended })
    }

    /// Waits until the program has ended. Kills the program if it still runs after `limit`.
    ///
    /// # Errors
    ///
    /// If the program does not end after SIGKILL.
    pub fn finish(mut self, limit: impl Into<Deadline>) -> Result<Ended> {
        self.finish_within(limit)
    }

    pub(crate) fn finish_within(&mut self, limit: impl Into<Deadline>) -> Result<Ended> {
        match self.end(limit)? {
            Some(ended) => Ok(ended),
            None => self.kill(),
        }
    }

    /// Waits for the agent's answer to the most recent request. Returns the time at which the
    /// request took effect, in milliseconds since 1970 by the clock of the program's host.
    pub(crate) fn answer(&mut self) -> Result<u64> {
        let mut deadline = Deadline::after(SILENCE);
        loop {
            match &self.answer {
                Some(answer) => return answer.clone().map_err(|why| anyhow!(why)),
                None if self.lost => bail!("lost the connection to the agent"),
                None if deadline.is_over() => bail!("the agent does not answer"),
                None => self.receive(deadline.left()),
            };
        }
    }

    fn is_over(&self) -> bool {
        self.status.is_some() || self.lost
    }

    /// Returns an error if the connection to the agent was lost before the program has ended.
    pub(crate) fn check(&self) -> Result<()> {
        let is_known = self.status.is_some() || !self.lost;
        ensure!(is_known, "lost the connection to the agent");
        Ok(())
    }

    /// Waits for up to `limit` until the agent's next frame arrives, and handles the frame. Returns
    /// true if a frame has arrived.
    fn receive(&mut self, limit: Duration) -> bool {
        match self.frames.recv_timeout(limit) {
            Ok(Frame::Out(bytes)) => self.add(0, &bytes),
            Ok(Frame::Err(bytes)) => self.add(1, &bytes),
            Ok(Frame::Began(at, id)) => (self.answer, self.id) = (Some(Ok(at)), id),
            Ok(Frame::Failed(why)) => self.answer = Some(Err(why)),
            Ok(Frame::Ended(status)) => {
                self.status = Some(status);
                for output in [0, 1] {
                    if !self.partial_lines[output].is_empty() {
                        self.add_lines(output, b"\n");
                    }
                }
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => {
                self.lost = true;
                return false;
            }
        }
        true
    }

    fn add(&mut self, output: usize, bytes: &[u8]) {
        self.printed.extend(bytes);
        self.add_lines(output, bytes);
    }

    fn add_lines(&mut self, output: usize, bytes: &[u8]) {
        let partial_lines = &mut self.partial_lines[output];
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            partial_lines.extend(part);
            if partial_lines.pop_if(|byte| *byte == b'\n').is_some() {
                let line = String::from_utf8_lossy(&mem::take(partial_lines)).into_owned();
                let line = [Line::Out, Line::Err][output](line);
                self.lines.push_back(line);
            }
        }
    }
}

pub(crate) fn job(argv: &[impl AsRef<str>], has_stdin: bool) -> Job {
    Job {
        argv: argv.iter().map(|arg| arg.as_ref().into()).collect(),
        has_stdin,
        ..Job::default()
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    text.is_empty() || bytes.windows(text.len()).any(|part| part == text)
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ignore the error: a program that cannot be killed must not prevent this process from
        // ending.
        let _ = self.kill();
    }
}

impl Ended {
    /// Returns whether the program ended by itself, with exit status 0.
    pub fn succeeded(&self) -> bool {
        self.status == Some(0)
    }
}

/// Writes the exit status, or "killed", and the last nonempty line that the program has printed.
impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "status {status}")?,
            None => f.write_str("killed")?,
        }
        match self.output.lines().rfind(|line| !line.trim().is_empty()) {
            Some(line) => write!(f, ": {}", line.trim()),
            None => Ok(()),
        }
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(line: &str) -> Process {
        Process::start_with_stdin(&["sh", "-c", line]).unwrap()
    }

    #[test]
    fn process_keeps_status_and_output() {
        let ended = shell("echo one; echo two >&2; exit 3")
            .finish(LIMIT)
            .unwrap();
        assert!(!ended.succeeded());
        assert!(ended.output.contains("one\n") && ended.output.contains("two\n"));
        assert_eq!(ended.status, Some(3));
        let mut signalled = shell("kill -TERM $$");
        let ended = signalled.end(LIMIT).unwrap().unwrap();
        assert_eq!(ended.to_string(), "status 143");
        let error = signalled.signal_at(Signal::SIGTERM).unwrap_err();
        assert_eq!(error.to_string(), "the program has ended");
    }

    #[test]
    fn kill_keeps_what_was_printed() {
        let mut hanging = shell("echo partial_lines; exec sleep 1000");
        assert!(hanging.wait_for_text("partial_lines", LIMIT));
        assert!(!hanging.wait_for_text("more", Duration::from_millis(10)));
        assert_eq!(hanging.kill().unwrap().to_string(), "killed: partial_lines");
    }

    #[test]
    fn end_is_known_while_a_child_keeps_the_output() {
        let mut program = shell("sleep 1000 & echo $!; exit 4");
        let Some(Line::Out(child)) = program.line(LIMIT) else {
            panic!("no line")
        };
        let ended = program.finish(LIMIT).unwrap();
        assert_eq!(ended.status, Some(4));
        Process::start(&["kill", &child]).unwrap();
    }

    #[test]
    fn lines_come_one_by_one() {
        let mut program = shell("read word; echo $word; read word; printf 'no end' >&2");
        assert_eq!(program.line(Duration::from_millis(10)), None);
        assert!(program.tell("first"));
        assert_eq!(program.line(LIMIT), Some(Line::Out("first".into())));
        assert!(program.tell("second"));
        assert_eq!(program.line(LIMIT), Some(Line::Err("no end".into())));
        assert_eq!(program.line(LIMIT), None);
        assert!(!program.wait_for_text("third", LIMIT));
        assert!(program.finish(LIMIT).unwrap().succeeded());
    }
}
