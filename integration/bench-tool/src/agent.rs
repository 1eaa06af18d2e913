//! Starts servers at the wish of another host.
//!
//! One TCP connection a server. The request is the server's port and its arguments, a line each, and an empty line. The answer is
//! `ready` once it listens, or `failed` and why. When the other host then ends its side of the connection the server has some seconds to
//! end by itself; before that, `kill` says that it will not. The answer ends with how it ended. A request without arguments ends the agent.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::AsFd,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::child::Child;

const PORT: u16 = 7470;

/// How long the other host may take to start, and between two servers.
const IDLE_LIMIT: Duration = Duration::from_secs(120);

/// How long a server may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(20);

/// How long a server may take to end after its client.
const END_LIMIT: Duration = Duration::from_secs(10);

/// How long a server may run. More than any client may.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// Between two looks at something that nothing tells of.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Agent(TcpListener);

impl Agent {
    pub(crate) fn bind(address: &str) -> Result<Self> {
        let listener =
            TcpListener::bind((address, PORT)).context("cannot listen for the other host")?;
        Ok(Self(listener))
    }

    /// Starts servers until it is told to end.
    pub(crate) fn serve(&self) -> Result<()> {
        loop {
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, PollTimeout::try_from(IDLE_LIMIT)?)? == 0 {
                bail!("nothing was heard of the other host for {IDLE_LIMIT:?}");
            }
            let (stream, _) = self.0.accept()?;
            if !serve_one(stream)? {
                return Ok(());
            }
        }
    }
}

/// Says whether to go on.
fn serve_one(mut stream: TcpStream) -> Result<bool> {
    stream.set_read_timeout(Some(RUN_LIMIT))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut request = Vec::new();
    for line in &mut lines {
        match line {
            Ok(line) if !line.is_empty() => request.push(line),
            Ok(_) => break,
            Err(error) => return Err(error).context("cannot read a request"),
        }
    }
    let Some((port, argv)) = request.split_first().filter(|(_, argv)| !argv.is_empty()) else {
        return Ok(false);
    };
    // A client that gave up does not listen any more, and that is no failure of ours.
    match start(port, argv) {
        Ok(child) => {
            let _ = writeln!(stream, "ready");
            let limit = match lines.next() {
                Some(_) => Duration::ZERO,
                None => END_LIMIT,
            };
            let ended = child.finish(limit)?;
            let _ = write!(stream, "{ended}");
        }
        Err(error) => {
            let _ = writeln!(stream, "failed\n{error:#}");
        }
    }
    Ok(true)
}

/// Starts a server and waits until it listens.
fn start(port: &str, argv: &[String]) -> Result<Child> {
    let mut child = Child::start(argv)?;
    let deadline = Instant::now() + START_LIMIT;
    while !listens(port)? {
        if child.has_ended()? {
            bail!("{} ended at once: {}", argv[0], child.finish(END_LIMIT)?);
        }
        if Instant::now() > deadline {
            bail!("{} did not listen within {START_LIMIT:?}", argv[0]);
        }
        thread::sleep(PAUSE);
    }
    Ok(child)
}

/// Whether there is a connection manager id that listens on `port`.
fn listens(port: &str) -> Result<bool> {
    let ids = Command::new("rdma")
        .args(["resource", "show", "cm_id"])
        .output()
        .context("cannot run rdma, which is in the package iproute2")?;
    let end = format!(":{port}");
    Ok(String::from_utf8_lossy(&ids.stdout).lines().any(|line| {
        line.contains("state LISTEN") && line.split_whitespace().any(|word| word.ends_with(&end))
    }))
}

/// A server that an agent started.
#[derive(Debug)]
pub(crate) struct Server(BufReader<TcpStream>);

impl Server {
    /// Returns once the server listens.
    pub(crate) fn start(host: &str, port: u16, argv: &[String]) -> Result<Self> {
        let mut stream = connect(host)?;
        stream.set_read_timeout(Some(START_LIMIT + END_LIMIT * 2))?;
        stream.write_all(format!("{port}\n{}\n\n", argv.join("\n")).as_bytes())?;
        let mut answer = BufReader::new(stream);
        let mut line = String::new();
        answer.read_line(&mut line)?;
        if line != "ready\n" {
            answer.read_to_string(&mut line)?;
            bail!("the server did not start: {}", line.trim());
        }
        Ok(Self(answer))
    }

    /// Has the server killed, as its client failed. Returns what it printed last.
    pub(crate) fn kill(mut self) -> Result<String> {
        self.0.get_mut().write_all(b"kill\n")?;
        self.finish()
    }

    /// Waits until the server has ended. Returns how, and what it printed last.
    pub(crate) fn finish(mut self) -> Result<String> {
        self.0.get_ref().shutdown(Shutdown::Write)?;
        let mut text = String::new();
        self.0.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// Ends the agent at `host`.
pub(crate) fn dismiss(host: &str) -> Result<()> {
    connect(host)?.write_all(b"\n")?;
    Ok(())
}

/// Connects to the agent, which may not be up yet.
fn connect(host: &str) -> Result<TcpStream> {
    let deadline = Instant::now() + IDLE_LIMIT;
    loop {
        match TcpStream::connect((host, PORT)) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("the agent at {host} does not answer"));
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
