use std::{net::SocketAddr, path::Path};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::{Deadline, Ended, Line, Process, TIME_LIMIT, status_kib};

/// A running `rdmsg bridge` process. Dropping the `Bridge` kills the process.
#[derive(Debug)]
pub struct Bridge {
    /// The process of the bridge.
    pub process: Process,
    /// The address on which the bridge listens.
    pub address: SocketAddr,
}

/// Two bridges on this host, which are connected over rdmsg. A TCP client connects to the near
/// bridge, and reaches a TCP service through both bridges.
#[derive(Debug)]
pub struct BridgePair {
    /// The bridge to which clients connect.
    pub near: Bridge,
    /// The bridge that connects to the service.
    pub far: Bridge,
}

impl Bridge {
    /// Runs `program`, which must be `rdmsg`, as a bridge, and waits until the bridge listens. The
    /// port in `listen` can be 0, which selects a free port.
    ///
    /// # Errors
    ///
    /// If the bridge does not start. The error contains the bridge's output.
    pub fn start(program: &Path, listen: &str, to: &str, more: &[&str]) -> Result<Self> {
        let mut process = Self::process(program, listen, to, more)?;
        let line = loop {
            match process.line(TIME_LIMIT) {
                Some(Line::Out(line)) if line.starts_with("listening on ") => break line,
                Some(Line::Out(_) | Line::Err(_)) => {}
                None => bail!("--listen {listen}: {}", process.finish(TIME_LIMIT)?),
            }
        };
        let listens = line.strip_suffix(&format!(", to {to}"));
        let address = listens.and_then(|listens| listens.split_once("://")?.1.parse().ok());
        let address = address.context(line)?;
        Ok(Self { process, address })
    }

    /// Runs a bridge that must fail to start. Returns its exit status and output.
    ///
    /// # Errors
    ///
    /// If the bridge still runs after [`TIME_LIMIT`].
    pub fn refused(program: &Path, listen: &str, to: &str) -> Result<Ended> {
        let ended = Self::process(program, listen, to, &[])?.end(TIME_LIMIT)?;
        ended.with_context(|| format!("the bridge with --listen {listen} --to {to} still runs"))
    }

    fn process(program: &Path, listen: &str, to: &str, more: &[&str]) -> Result<Process> {
        let program = program.to_string_lossy();
        let options = ["bridge", "--listen", listen, "--to", to];
        Process::start(&[&[&*program], &options[..], more].concat())
    }

    /// Requests reports with SIGUSR1 until a report contains `what`. One report is not enough: it
    /// can be outdated, because the bridge updates its counters with a short delay.
    ///
    /// # Errors
    ///
    /// If no report contains `what` within [`TIME_LIMIT`]. The error contains the last report.
    pub fn reports(&mut self, what: &str) -> Result<()> {
        let mut deadline = Deadline::after(TIME_LIMIT);
        let mut last_report = String::new();
        while !deadline.is_over() {
            self.process.signal(Signal::SIGUSR1)?;
            while let Some(line) = self.process.line(deadline.left()) {
                if let Line::Out(line) = line {
                    last_report = line;
                    break;
                }
            }
            if last_report.contains(what) {
                return Ok(());
            }
        }
        bail!("the last report of the bridge does not contain {what:?}: {last_report:?}")
    }

    /// Returns whether the bridge prints `text` within [`TIME_LIMIT`].
    pub fn says(&mut self, text: &str) -> bool {
        self.process.wait_for_text(text, TIME_LIMIT)
    }

    /// Waits until the bridge ends by itself. Returns its exit status and output.
    ///
    /// # Errors
    ///
    /// If the bridge still runs after [`TIME_LIMIT`].
    pub fn end(&mut self) -> Result<Ended> {
        self.process
            .end(TIME_LIMIT)?
            .context("the bridge still runs")
    }

    /// Returns the resident anonymous memory of the bridge (RssAnon), in bytes.
    ///
    /// # Errors
    ///
    /// If `/proc` does not contain this value.
    pub fn memory(&self) -> Result<usize> {
        Ok((status_kib(self.process.id(), "RssAnon")? as usize) << 10)
    }
}

impl BridgePair {
    /// Starts both bridges with the same options. The far bridge listens on the address `between`,
    /// to which the near bridge connects. The scheme of `between` selects the transport:
    /// `rdma://10.8.0.1:0` in the lab, `rdmsg+tcp://127.0.0.1:0` on any machine.
    ///
    /// # Errors
    ///
    /// If a bridge does not start, as for [`Bridge::start`].
    pub fn start(
        program: &Path,
        between: &str,
        service: SocketAddr,
        options: &[&str],
    ) -> Result<Self> {
        let (scheme, _) = between
            .split_once("://")
            .context("the address between the bridges has no scheme")?;
        let far = Bridge::start(program, between, &format!("tcp://{service}"), options)?;
        let to = format!("{scheme}://{}", far.address);
        let near = Bridge::start(program, "tcp://127.0.0.1:0", &to, options)?;
        Ok(Self { near, far })
    }
}
