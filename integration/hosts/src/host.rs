use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;

use crate::{
    Deadline, Ended, Heard, Line, Listening, Process,
    agent::{PAUSE, PORT, retry},
    link::Link,
    process::{SILENCE, job},
    wire::{Frame, HOST},
};

/// The time limit for a server to listen, on an idle machine.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);

/// A host that runs one program at a time, and shell commands.
#[derive(Debug)]
pub struct Host {
    link: Link,
    process: Option<Process>,
}

/// The result of waiting for a program's next line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers handle each of them")]
pub enum Said {
    /// A line.
    Line(Line),
    /// The program has ended.
    Ended(Ended),
    /// The program has printed no line in time.
    Nothing,
}

impl Host {
    /// Returns this host.
    #[must_use]
    pub fn here() -> Self {
        Self::over(Link::here())
    }

    fn over(link: Link) -> Self {
        Self {
            link,
            process: None,
        }
    }

    /// Connects to the agent at this address, which may still be starting.
    ///
    /// # Errors
    ///
    /// If no agent listens in time.
    pub fn connect(address: IpAddr) -> Result<Self> {
        Self::connect_to(SocketAddr::new(address, PORT))
    }

    pub(crate) fn connect_to(address: SocketAddr) -> Result<Self> {
        let stream = retry(|| TcpStream::connect(address));
        let stream = stream.with_context(|| format!("the agent at {address} does not answer"))?;
        Link::there(stream).map(Self::over)
    }

    /// Starts a program with its arguments, without a stdin. Kills the previous program.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn start(&mut self, argv: &[String]) -> Result<()> {
        self.process = None;
        self.process = Some(Process::on(&self.link, argv, false)?);
        Ok(())
    }

    /// Starts a program with a stdin for [`tell`](Self::tell). Kills the previous program.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn start_with_stdin(&mut self, argv: &[String]) -> Result<()> {
        self.process = None;
        self.process = Some(Process::on(&self.link, argv, true)?);
        Ok(())
    }

    fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("no program was started")
    }

    /// Waits until a server accepts connections. Returns `false` if the server has ended before.
    ///
    /// # Errors
    ///
    /// If the server is not ready in time.
    pub fn listens(&mut self, listening: Listening) -> Result<bool> {
        let mut deadline = Deadline::after(LISTEN_LIMIT);
        loop {
            let shown = Process::on(&self.link, listening.command(), false)?.finish(SILENCE)?;
            if listening.is_shown_in(&shown.output) {
                return Ok(true);
            }
            if self.process()?.end(PAUSE)?.is_some() {
                return Ok(false);
            }
            ensure!(
                !deadline.is_over(),
                "the server is not ready: {listening:?}"
            );
        }
    }

    /// Waits until the program has printed this text.
    ///
    /// # Errors
    ///
    /// If the agent is gone.
    pub fn hear(&mut self, text: &str, limit: impl Into<Deadline>) -> Result<Heard> {
        let process = self.process()?;
        let heard = process.hear(text, limit);
        process.check().map(|()| heard)
    }

    /// Waits for the program's next line.
    ///
    /// # Errors
    ///
    /// If the agent is gone.
    pub fn line(&mut self, limit: impl Into<Deadline>) -> Result<Said> {
        let process = self.process()?;
        if let Some(line) = process.line(limit) {
            return Ok(Said::Line(line));
        }
        process.check()?;
        if !process.is_over() {
            return Ok(Said::Nothing);
        }
        let ended = process.end(Duration::ZERO)?;
        ended.map(Said::Ended).context("it has ended")
    }

    /// Writes a line to the program's stdin. Returns whether the program has an open stdin.
    ///
    /// # Errors
    ///
    /// If no program was started.
    pub fn tell(&mut self, line: &str) -> Result<bool> {
        Ok(self.process()?.tell(line))
    }

    /// Sends the program a signal, named without SIG, and after SIGKILL waits for the program's
    /// end. Returns the time of that host in milliseconds.
    ///
    /// # Errors
    ///
    /// If the program has ended.
    pub fn signal(&mut self, name: &str) -> Result<u64> {
        let signal = Signal::from_str(&format!("SIG{name}"))?;
        let process = self.process()?;
        let began = process.signal_at(signal)?;
        if signal == Signal::SIGKILL {
            let ended = process.end(SILENCE)?;
            ended.context("the program was killed and goes on")?;
        }
        Ok(began)
    }

    /// Waits for the program's end, and kills the program after `limit`.
    ///
    /// # Errors
    ///
    /// If the program does not end after SIGKILL.
    pub fn finish(&mut self, limit: impl Into<Deadline>) -> Result<Ended> {
        self.process()?.finish_within(limit)
    }

    /// Runs a shell command to its end. Returns the time at which it started, in milliseconds of
    /// that host's clock, and its stdout.
    ///
    /// # Errors
    ///
    /// If its status is not 0. The error contains its stderr.
    pub fn shell(&mut self, script: &str) -> Result<(u64, String)> {
        let mut process = Process::on(&self.link, &["sh", "-c", script], false)?;
        let began = process.answer()?;
        let ended = process.finish_within(SILENCE)?;
        let [mut out, mut err] = [const { String::new() }; 2];
        while let Some(line) = process.line(Duration::ZERO) {
            match line {
                Line::Out(line) => out = out + &line + "\n",
                Line::Err(line) => err = err + &line + "\n",
            }
        }
        match ended.status {
            Some(0) => Ok((began, out)),
            Some(status) => bail!("{script}: status {status}: {}", err.trim()),
            None => bail!("{script}: it did not end"),
        }
    }

    /// Restarts the host at once, and with it the agent.
    ///
    /// # Errors
    ///
    /// If the agent is already gone.
    pub fn die(&mut self) -> Result<()> {
        ensure!(!self.link.is_here(), "this host stays");
        let argv = ["sh", "-c", "echo b >/proc/sysrq-trigger"];
        // The host sends no answer.
        self.link.start(job(&argv, false)).map(drop)
    }

    /// Ends the agent of another host.
    ///
    /// # Errors
    ///
    /// If the agent is already gone.
    pub fn quit(self) -> Result<()> {
        if self.link.is_here() {
            return Ok(());
        }
        self.link.send(HOST, &Frame::Quit)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The program keeps the connection, which a thread reads until the agent ends it.
        self.process = None;
        self.link.end();
    }
}
