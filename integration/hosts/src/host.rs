use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;

use crate::{
    Deadline, Ended, Line, Listening, Process,
    agent::{PAUSE, PORT, START_LIMIT},
    link::Link,
    process::{SILENCE, job},
    retry,
    wire::{Frame, HOST},
};

/// The time limit for a server to start listening. `Deadline` extends it on a slow machine.
const LISTEN_LIMIT: Duration = Duration::from_secs(60);

/// A host on which the caller can run programs, one at a time. The caller can also run shell
/// commands while a program runs.
#[derive(Debug)]
pub struct Host {
    link: Link,
    process: Option<Process>,
}

impl Host {
    /// Returns the host on which this process runs.
    pub fn here() -> Self {
        Self::over(Link::here())
    }

    fn over(link: Link) -> Self {
        Self {
            link,
            process: None,
        }
    }

    /// Connects to the agent on the host `address`. Retries for up to 300 s (longer on a slow
    /// machine), because the agent may not have started yet.
    ///
    /// # Errors
    ///
    /// If no agent accepts the connection within this time.
    pub fn connect(address: IpAddr) -> Result<Self> {
        Self::connect_to(SocketAddr::new(address, PORT))
    }

    pub(crate) fn connect_to(address: SocketAddr) -> Result<Self> {
        let stream = retry(START_LIMIT, PAUSE, || TcpStream::connect(address));
        let stream = stream.with_context(|| format!("the agent at {address} does not answer"))?;
        Link::there(stream).map(Self::over)
    }

    /// Kills the previous program, if any. Then starts the program `argv[0]` without a stdin. The
    /// other elements of `argv` are its arguments.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn start(&mut self, argv: &[String]) -> Result<()> {
        self.process = None;
        self.process = Some(Process::on(&self.link, argv, false)?);
        Ok(())
    }

    /// Kills the previous program, if any. Then starts a program with a stdin, to which
    /// [`Process::tell`] writes.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn start_with_stdin(&mut self, argv: &[String]) -> Result<()> {
        self.process = None;
        self.process = Some(Process::on(&self.link, argv, true)?);
        Ok(())
    }

    /// Returns the program that was started last.
    ///
    /// # Errors
    ///
    /// If no program was started.
    pub fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("no program was started")
    }

    /// Waits until the program, which is a server, accepts connections. Returns `true` in this
    /// case, or `false` if the program ends first.
    ///
    /// # Errors
    ///
    /// If the server accepts no connections within 60 s (longer on a slow machine). The error
    /// contains the output of the server and the kernel stacks of its threads.
    pub fn listens(&mut self, listening: Listening) -> Result<bool> {
        let listens = retry(LISTEN_LIMIT, PAUSE, || {
            let shown = Process::on(&self.link, listening.command(), false)?.finish(SILENCE)?;
            let is_ready = listening.is_shown_in(&shown.output);
            let has_ended = !is_ready && self.process()?.end(Duration::ZERO)?.is_some();
            let output = &shown.output;
            ensure!(
                is_ready || has_ended,
                "the server is not ready: {listening:?} is not in {output:?}"
            );
            Ok(is_ready)
        });
        listens.with_context(|| self.state_of_process())
    }

    /// Returns the output of the program, and the kernel stacks of its threads.
    pub(crate) fn state_of_process(&mut self) -> String {
        let Ok(process) = self.process() else {
            return "no program runs".to_owned();
        };
        let (id, printed) = (process.id(), process.printed());
        let stacks = match self.shell(&format!("cat /proc/{id}/task/*/stack")) {
            Ok((_, stacks)) => stacks,
            Err(error) => format!("{error:#}"),
        };
        format!("the program has printed {printed:?}; its kernel stacks: {stacks}")
    }

    /// Does the same as [`Process::wait_for_text`] for the program that was started last.
    ///
    /// # Errors
    ///
    /// If the connection to the agent is lost.
    pub fn wait_for_text(&mut self, text: &str, limit: impl Into<Deadline>) -> Result<bool> {
        let process = self.process()?;
        let is_printed = process.wait_for_text(text, limit);
        process.check().map(|()| is_printed)
    }

    /// Sends a signal to the program. `name` is the signal's name without SIG. If the signal is
    /// SIGKILL, waits until the program has ended. Returns the time at which the signal was sent,
    /// in milliseconds since 1970 by the host's clock.
    ///
    /// # Errors
    ///
    /// If `name` is not a signal, or if the program has ended.
    pub fn signal(&mut self, name: &str) -> Result<u64> {
        let signal = Signal::from_str(&format!("SIG{name}"))?;
        let process = self.process()?;
        let began = process.signal_at(signal)?;
        if signal == Signal::SIGKILL {
            let ended = process.end(SILENCE)?;
            ended.context("the program still runs after SIGKILL")?;
        }
        Ok(began)
    }

    /// Waits until the program has ended. Kills the program if it still runs after `limit`.
    ///
    /// # Errors
    ///
    /// If the program does not end after SIGKILL.
    pub fn finish(&mut self, limit: impl Into<Deadline>) -> Result<Ended> {
        self.process()?.finish_within(limit)
    }

    /// Runs a shell command and waits until it has ended. Returns the time at which the command
    /// started, in milliseconds since 1970 by the clock of the host, and the stdout of the command.
    ///
    /// # Errors
    ///
    /// If the command's exit status is not 0. The error contains the command's stderr.
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
            None => bail!("{script}: the command did not end and was killed"),
        }
    }

    /// Resets a remote host immediately, without a shutdown. The reset also ends the host's agent.
    ///
    /// # Errors
    ///
    /// If this is the local host, or if the connection to the agent is already lost.
    pub fn die(&mut self) -> Result<()> {
        ensure!(!self.link.is_here(), "the local host cannot be reset");
        let argv = ["sh", "-c", "echo b >/proc/sysrq-trigger"];
        // The host resets before it can send an answer, so do not wait for an answer.
        self.link.start(job(&argv, false)).map(drop)
    }

    /// Ends the agent of a remote host. Does nothing for the local host.
    ///
    /// # Errors
    ///
    /// If the connection to the agent is already lost.
    pub fn quit(self) -> Result<()> {
        if self.link.is_here() {
            return Ok(());
        }
        self.link.send(HOST, &Frame::Quit)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // For a remote host, a thread of the link reads from the TCP connection until the agent
        // closes the connection. To end this thread, kill the program and shut down the sending
        // direction. The agent then ends and closes the connection.
        self.process = None;
        self.link.end();
    }
}
