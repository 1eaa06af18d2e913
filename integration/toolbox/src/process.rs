use std::{
    collections::VecDeque,
    fmt, fs,
    io::{Read, Write},
    mem,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::Deadline;

/// Between two looks at whether a program has ended.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a program that was killed may take to end, and what one that has ended had printed to
/// come, where something that it started keeps its outputs open.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A program that runs, with its output kept. It is killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Until both of its outputs are closed, which is what ending does.
    output: Option<Receiver<(Stream, Vec<u8>)>>,
    printed: Vec<u8>,
    /// The beginning of a line, of each stream.
    begun: [Vec<u8>; 2],
    lines: VecDeque<Line>,
}

#[derive(Clone, Copy, Debug)]
enum Stream {
    Stdout,
    Stderr,
}

/// One line that a program has printed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a program has two outputs")]
pub enum Line {
    /// To stdout.
    Out(String),
    /// To stderr.
    Err(String),
}

/// What came of waiting for a program to print something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers handle each of them")]
pub enum Heard {
    /// It has.
    Said,
    /// It has ended without.
    Ended,
    /// It has not in time.
    Late,
}

/// How a program ended, and what it printed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "these two are all there is")]
pub struct Ended {
    /// Its status, 128 and the signal's number where it was a signal; `None` when it was killed
    /// from here.
    pub status: Option<i32>,
    /// Both of its outputs.
    pub output: String,
}

/// A command line whose words are divided by blanks.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

impl Process {
    /// Starts a program with its arguments, nothing on stdin and no RUST_LOG.
    ///
    /// # Errors
    ///
    /// When there is none, or it cannot be run.
    pub fn start(argv: &[impl AsRef<str>]) -> Result<Self> {
        // What it prints when nobody asks for more.
        Self::spawn(argv, |command| command.env_remove("RUST_LOG"))
    }

    /// As [`start`](Self::start), with a stdin for [`tell`](Self::tell).
    ///
    /// # Errors
    ///
    /// When there is none, or it cannot be run.
    pub fn start_told(argv: &[impl AsRef<str>]) -> Result<Self> {
        Self::spawn(argv, |command| command.stdin(Stdio::piped()))
    }

    fn spawn(
        argv: &[impl AsRef<str>],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Result<Self> {
        let (program, args) = argv.split_first().context("no program is named")?;
        let program = program.as_ref();
        let mut command = Command::new(program);
        command
            .args(args.iter().map(AsRef::as_ref))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = change(&mut command)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let (sender, output) = channel();
        forward(child.stdout.take(), Stream::Stdout, sender.clone());
        forward(child.stderr.take(), Stream::Stderr, sender);
        Ok(Self {
            child,
            output: Some(output),
            printed: Vec::new(),
            begun: [const { Vec::new() }; 2],
            lines: VecDeque::new(),
        })
    }

    /// The id under which the system knows it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    ///
    /// # Errors
    ///
    /// When the system does not say.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits until it has printed this, to either output.
    pub fn hear(&mut self, text: &str, limit: impl Into<Deadline>) -> Heard {
        let mut deadline = limit.into();
        loop {
            if contains(&self.printed, text.as_bytes()) {
                return Heard::Said;
            }
            if self.output.is_none() {
                return Heard::Ended;
            }
            if !self.receive(deadline.left()) && deadline.is_over() {
                return Heard::Late;
            }
        }
    }

    /// Its next line. `None` when none has come in this time, or when there will be no more.
    pub fn line(&mut self, limit: impl Into<Deadline>) -> Option<Line> {
        let mut deadline = limit.into();
        while self.lines.is_empty() && self.output.is_some() {
            if !self.receive(deadline.left()) && deadline.is_over() {
                return None;
            }
        }
        self.lines.pop_front()
    }

    /// Gives it a line on stdin. Whether it is there to take it.
    pub fn tell(&mut self, line: &str) -> bool {
        let stdin = self.child.stdin.as_mut();
        stdin.is_some_and(|stdin| stdin.write_all(format!("{line}\n").as_bytes()).is_ok())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// When it has ended and was waited for.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = Pid::from_raw(self.child.id() as i32);
        kill(id, signal).with_context(|| format!("cannot send {signal} to {id}"))
    }

    /// Waits for its end; `None` when that has not come in this time.
    ///
    /// # Errors
    ///
    /// When the system does not say.
    pub fn end(&mut self, limit: impl Into<Deadline>) -> Result<Option<Ended>> {
        let mut deadline = limit.into();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(self.ended(status)));
            }
            if deadline.is_over() {
                return Ok(None);
            }
            self.receive_or_pause(deadline.left().min(PAUSE));
        }
    }

    /// Kills it if it still runs. How it ended then, or had before.
    ///
    /// # Errors
    ///
    /// When it does not end: it is at something in the kernel that does not end either, and the
    /// error says what.
    pub fn kill(&mut self) -> Result<Ended> {
        if let Some(ended) = self.end(Duration::ZERO)? {
            return Ok(ended);
        }
        self.child.kill()?;
        match self.end(LAST_WORDS)? {
            Some(ended) => Ok(Ended {
                status: None,
                ..ended
            }),
            None => bail!("a program was killed and goes on: {}", self.occupation()),
        }
    }

    /// Waits until it ends, and kills it when that takes longer than `limit`.
    ///
    /// # Errors
    ///
    /// When it cannot be killed.
    pub fn finish(mut self, limit: impl Into<Deadline>) -> Result<Ended> {
        match self.end(limit)? {
            Some(ended) => Ok(ended),
            None => self.kill(),
        }
    }

    /// What it has printed. It has ended, so there is no more to come, but from what it started.
    fn ended(&mut self, status: ExitStatus) -> Ended {
        let mut deadline = Deadline::exactly_after(LAST_WORDS);
        while self.output.is_some() && (self.receive(deadline.left()) || !deadline.is_over()) {}
        self.output = None;
        Ended {
            status: Some(code(status)),
            output: String::from_utf8_lossy(&self.printed).into_owned(),
        }
    }

    /// Takes what it prints next. Whether something has come.
    fn receive(&mut self, limit: Duration) -> bool {
        let Some(output) = &self.output else {
            return false;
        };
        match output.recv_timeout(limit) {
            Ok((stream, bytes)) => {
                self.printed.extend(&bytes);
                self.add_lines(stream, &bytes);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                self.output = None;
                for stream in [Stream::Stdout, Stream::Stderr] {
                    if !self.begun[stream as usize].is_empty() {
                        self.add_lines(stream, b"\n");
                    }
                }
                false
            }
        }
    }

    /// As [`receive`](Self::receive), where nothing may come any more.
    fn receive_or_pause(&mut self, limit: Duration) {
        if self.output.is_none() {
            thread::sleep(limit);
        } else {
            self.receive(limit);
        }
    }

    fn add_lines(&mut self, stream: Stream, bytes: &[u8]) {
        let begun = &mut self.begun[stream as usize];
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            begun.extend(part);
            if begun.pop_if(|byte| *byte == b'\n').is_some() {
                let line = String::from_utf8_lossy(&mem::take(begun)).into_owned();
                self.lines.push_back(match stream {
                    Stream::Stdout => Line::Out(line),
                    Stream::Stderr => Line::Err(line),
                });
            }
        }
    }

    /// What it is at, as far as the kernel tells.
    fn occupation(&self) -> String {
        let read = |what: &str| {
            let text = fs::read_to_string(format!("/proc/{}/{what}", self.child.id()));
            text.unwrap_or_default().trim().replace('\n', "; ")
        };
        let status = read("status");
        let field = |name: &str| {
            let field = status.split("; ").find(|field| field.starts_with(name));
            field.unwrap_or_default().to_owned()
        };
        format!(
            "{}, {}, in {}",
            field("Name:"),
            field("State:"),
            read("stack")
        )
    }
}

fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    text.is_empty() || bytes.windows(text.len()).any(|part| part == text)
}

/// Reads an output as long as it is open.
fn forward(
    output: Option<impl Read + Send + 'static>,
    stream: Stream,
    sender: Sender<(Stream, Vec<u8>)>,
) {
    let Some(mut output) = output else { return };
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            if sender.send((stream, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
}

impl Drop for Process {
    fn drop(&mut self) {
        // What does not end must not keep its parent from ending.
        let _ = self.kill();
    }
}

impl Heard {
    /// As one host tells another.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Said => "said",
            Self::Ended => "ended",
            Self::Late => "late",
        }
    }
}

impl Ended {
    /// Whether it ended by itself, with status 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.status == Some(0)
    }
}

/// The way it ended, and the last line that it printed.
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
        Process::start_told(&["sh", "-c", line]).unwrap()
    }

    #[test]
    fn status_and_output_are_kept() {
        let ended = shell("echo one; echo two >&2; exit 3")
            .finish(LIMIT)
            .unwrap();
        assert!(!ended.succeeded());
        assert!(ended.output.contains("one\n") && ended.output.contains("two\n"));
        assert_eq!(ended.status, Some(3));
        let signalled = shell("kill -TERM $$").finish(LIMIT).unwrap();
        assert_eq!(signalled.to_string(), "status 143");
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_what_it_printed_is_kept() {
        let mut hanging = shell("echo begun; exec sleep 1000");
        assert_eq!(hanging.hear("begun", LIMIT), Heard::Said);
        assert_eq!(hanging.hear("more", Duration::from_millis(10)), Heard::Late);
        assert_eq!(hanging.kill().unwrap().to_string(), "killed: begun");
    }

    #[test]
    fn the_end_is_known_while_a_child_of_it_keeps_the_output_open() {
        let mut program = shell("sleep 1000 & echo $!; exit 4");
        let Some(Line::Out(child)) = program.line(LIMIT) else {
            panic!("no line")
        };
        let ended = program.finish(LIMIT).unwrap();
        assert_eq!(ended.status, Some(4));
        kill(Pid::from_raw(child.parse().unwrap()), Signal::SIGKILL).unwrap();
    }

    #[test]
    fn lines_come_one_by_one_and_the_last_needs_no_end() {
        let mut program = shell("read word; echo $word; read word; printf 'no end' >&2");
        assert_eq!(program.line(Duration::from_millis(10)), None);
        assert!(program.tell("first"));
        assert_eq!(program.line(LIMIT), Some(Line::Out("first".into())));
        assert!(program.tell("second"));
        assert_eq!(program.line(LIMIT), Some(Line::Err("no end".into())));
        assert_eq!(program.line(LIMIT), None);
        assert_eq!(program.hear("third", LIMIT), Heard::Ended);
        assert!(program.finish(LIMIT).unwrap().succeeded());
    }
}
