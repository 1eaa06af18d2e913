//! Runs the services one after another: the servers on host a, and their clients on this host.

use std::{
    env, fs,
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use toolbox::{Deadline, Host, Process, network, words};

use crate::plan::{CERTIFICATE, Expected, Line, PAGE_FILE, StartSign, SuccessSign, services};

/// The time limit for a server to start listening, and for a server to end. Also the time limit for
/// a client to print that it has started its work.
const SERVER_LIMIT: Duration = Duration::from_secs(30);
/// The time limit for a client to end.
const CLIENT_LIMIT: Duration = Duration::from_secs(300);

/// The time limit for a client to detect that the network is cut: the keepalive interval plus the
/// keepalive timeout.
const CUT_LIMIT: Duration = Duration::from_secs(5);

/// The duration of an outage, after which sessions resume. A client without a session would end
/// within [`CUT_LIMIT`] after the start of the outage.
const OUTAGE: Duration = Duration::from_secs(20);

/// The argument of `netem` that drops all RDMA packets.
const LOSS: &str = "loss 100%";

/// The servers' port for rdmsg.
const PORT: u16 = 7480;
/// The servers' port for plain TCP.
const TCP_PORT: u16 = 8080;
/// The address of the bridge on this host.
const NEAR: &str = "127.0.0.1:6391";

/// Prints the kernel stack of each thread, on one line, the state of each TCP connection, and the
/// last messages of the kernel.
const STACKS: &str = r"for thread in /proc/[0-9]*/task/*; do
    process=${thread%/task/*}
    [ -s $process/cmdline ] || continue
    echo $(tr '\0' ' ' <$process/cmdline | cut -c-80), $(cat $thread/comm $thread/stack)
done 2>/dev/null
ss -tni
dmesg | tail -20";

/// The size in bytes of the file that some clients copy.
const FILE: u64 = 50_000_000;
/// The size in bytes of a file with holes, whose copy takes longer than a cut of the network needs.
const ENDLESS: u64 = 1 << 30;

/// A run of the plan, with both hosts and the number of failed steps.
pub(crate) struct Run {
    /// The host on which the servers run.
    there: Host,
    /// The host on which the clients run.
    here: Host,
    /// The placeholders in the plan's commands, and their values.
    placeholders: [(&'static str, String); 8],
    /// The size of a page in bytes.
    page: u64,
    cuts: bool,
    failed: u32,
}

impl Run {
    pub(crate) fn new(host: IpAddr, quick: bool) -> Result<Self> {
        let (requests, page): (u64, u64) = match quick {
            true => (100, 1_000_000),
            false => (10_000, 10_000_000),
        };
        Ok(Self {
            there: Host::connect(host)?,
            here: Host::here(),
            placeholders: [
                ("RDMSG", format!("{host}:{PORT}")),
                ("TCP", format!("{host}:{TCP_PORT}")),
                ("NEAR", NEAR.to_owned()),
                ("PAGE", page.to_string()),
                ("PORT", TCP_PORT.to_string()),
                ("IP", host.to_string()),
                ("COUNT", requests.to_string()),
                ("MANY", (5 * requests).to_string()),
            ],
            page,
            cuts: !quick,
            failed: 0,
        })
    }

    /// Runs all services, or only those with the given names. Returns the number of failed steps.
    pub(crate) fn all(mut self, only: &[String]) -> Result<u32> {
        let is_requested = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
        let mut services = services()?;
        services.retain(|(name, _)| is_requested(name));
        ensure!(!services.is_empty(), "--only selects no service: {only:?}");
        // Some clients copy this file. /tmp/sums contains the checksum that each copy must have.
        fs::write("/tmp/file", pattern::sequence(0, FILE as usize))?;
        let sums = "sha256sum /tmp/file | sed s,/tmp/file,/tmp/back, >/tmp/sums";
        self.here.shell(sums)?;
        fs::File::create("/tmp/endless")?.set_len(ENDLESS)?;
        row(["service", "over", "client", "result"]);
        for (name, lines) in services {
            self.serve(name, &lines)?;
        }
        self.there.quit()?;
        Ok(self.failed)
    }

    fn serve(&mut self, name: &str, lines: &[Line]) -> Result<()> {
        let (mut has_near, mut end, mut by_rdma) = (false, "", None);
        for line in lines {
            match &line.expected {
                Expected::Behind => drop(self.there.shell(&self.filled(&line.command))?),
                Expected::End => end = &line.command,
                Expected::Server => {
                    let argv = self.argv(&line.command)?;
                    listen(&mut self.there, &argv)?;
                    if line.command.contains(CERTIFICATE) {
                        let (_, text) = self.there.shell(&format!("cat {CERTIFICATE}"))?;
                        fs::write(CERTIFICATE, text)?;
                    }
                }
                Expected::Near => {
                    let argv = self.argv(&line.command)?;
                    listen(&mut self.here, &argv)?;
                    has_near = true;
                }
                Expected::Client(shows) => {
                    let transport = match &*line.command {
                        _ if has_near => "bridge",
                        command if command.contains("RDMSG") => "RDMA",
                        command if command.contains("/tmp/sums") => "-",
                        _ => "TCP",
                    };
                    let result = self.ask(&line.command, shows);
                    self.report(name, transport, &line.command, result);
                    if transport != "TCP" {
                        by_rdma = by_rdma.or(Some((transport, &line.command, shows)));
                    }
                }
                Expected::Cut(begun, error) if self.cuts => {
                    let result = self.cut(&line.command, begun, error);
                    self.report(name, "cut", &line.command, result);
                    // Check that the server still serves clients after the cut.
                    if let Some((transport, next, shows)) = by_rdma {
                        let result = self.ask(next, shows);
                        self.report(name, transport, next, result);
                    }
                }
                Expected::Cut(..) => {}
                Expected::Outage(begun, text) => {
                    let result = self.outage(&line.command, begun, text);
                    self.report(name, "outage", &line.command, result);
                }
            }
        }
        if has_near {
            let result = terminate(&mut self.here);
            self.report(name, "-", "SIGTERM to the near bridge", result);
        }
        let result = terminate(&mut self.there);
        self.report(name, "-", "SIGTERM", result);
        self.there.shell(end)?;
        Ok(())
    }

    fn report(&mut self, name: &str, transport: &str, client: &str, result: Result<String>) {
        let result = result.unwrap_or_else(|error| {
            self.failed += 1;
            format!("FAILED: {error:#}")
        });
        row([name, transport, client, &result]);
    }

    /// Returns `line` with the placeholders replaced by this run's values.
    fn filled(&self, line: &str) -> String {
        let fill = |line: String, (name, value): &(&str, String)| line.replace(name, value);
        self.placeholders.iter().fold(line.to_owned(), fill)
    }

    /// Splits a line into words. If the first word names a program of this repository, replaces it
    /// with the program's path.
    fn argv(&self, line: &str) -> Result<Vec<String>> {
        let mut argv = words(&self.filled(line));
        let ours = env::current_exe()?.with_file_name(&argv[0]);
        if ours.exists() {
            argv[0] = ours.to_string_lossy().into_owned();
        }
        Ok(argv)
    }

    /// Starts a client, and waits until it has started its work.
    fn begin(&mut self, line: &str, begun: &StartSign) -> Result<Process> {
        let mut client = Process::start(&self.argv(line)?)?;
        let until =
            |test| format!("for i in $(seq 600); do {test} && exit; sleep 0.05; done; exit 1");
        match begun {
            StartSign::Says(text) => ensure!(
                client.wait_for_text(text, SERVER_LIMIT),
                "the client has not begun its work: {}",
                client.finish(Duration::ZERO)?
            ),
            StartSign::There(test) => drop(self.there.shell(&until(test))?),
            StartSign::Here(test) => drop(self.here.shell(&until(test))?),
        }
        Ok(client)
    }

    /// Runs a shell command on both hosts.
    fn both(&mut self, script: &str) -> Result<()> {
        self.here.shell(script)?;
        self.there.shell(script).map(drop)
    }

    /// Makes both hosts drop all RDMA packets while a client runs. The client must then end with
    /// `error`. Returns the error, and the time that the client took to end.
    fn cut(&mut self, line: &str, begun: &StartSign, error: &str) -> Result<String> {
        let mut client = self.begin(line, begun)?;
        self.both(&network::impair(LOSS))?;
        let start = Instant::now();
        // Wait for twice the limit, because a busy host can take longer to detect the cut.
        let ended = client.end(Deadline::after(2 * CUT_LIMIT));
        let took = start.elapsed().as_secs_f64();
        self.both(network::REPAIR)?;
        let ended = ended?.context("the client still runs without a network")?;
        ensure!(!ended.succeeded(), "the client succeeded without a network");
        let printed = ended.output.trim();
        ensure!(printed.contains(error), "the client printed {printed:?}");
        Ok(format!("{error:?}, {took:.1} s"))
    }

    /// Makes both hosts drop all RDMA packets for 20 s while a client runs. The client must succeed
    /// nevertheless. Returns the time from the end of the outage to the end of the client. In a
    /// quick run, there is no outage.
    fn outage(&mut self, line: &str, begun: &StartSign, text: &str) -> Result<String> {
        let mut client = self.begin(line, begun)?;
        if self.cuts {
            self.both(&network::impair(LOSS))?;
            let ended = client.end(Deadline::exactly_after(OUTAGE));
            self.both(network::REPAIR)?;
            if let Some(ended) = ended? {
                bail!("the client ended during the outage: {ended}");
            }
        }
        let start = Instant::now();
        let ended = client.finish(CLIENT_LIMIT)?;
        ensure!(ended.succeeded(), "{ended}");
        let printed = ended.output.trim();
        ensure!(printed.contains(text), "the client printed {printed:?}");
        let took = start.elapsed().as_secs_f64();
        Ok(format!("ok, {took:.1} s after the repair"))
    }

    /// Runs a client. Returns the result for the table. If the client does not end in time, prints
    /// the kernel stacks of all threads on both hosts.
    fn ask(&mut self, line: &str, shows: &SuccessSign) -> Result<String> {
        let start = Instant::now();
        let mut client = Process::start(&self.argv(line)?)?;
        let ended = match client.end(CLIENT_LIMIT)? {
            Some(ended) => ended,
            None => {
                let there = self.there.shell(STACKS)?.1;
                let here = self.here.shell(STACKS)?.1;
                eprintln!("on the server's host:\n{there}\non this host:\n{here}");
                client.kill()?
            }
        };
        let (printed, took) = (&ended.output, start.elapsed().as_secs_f64());
        ensure!(ended.succeeded(), "{:?}: {}", ended.status, printed.trim());
        match shows {
            SuccessSign::Text(text) => {
                ensure!(
                    printed.contains(&self.filled(text)),
                    "the client printed {printed:?}"
                );
                Ok("ok".to_owned())
            }
            SuccessSign::Page => {
                let count = self.page;
                let received = fs::metadata(PAGE_FILE)?.len();
                ensure!(received == count, "{received} bytes of {count} arrived");
                fs::remove_file(PAGE_FILE)?;
                Ok(format!("{:.1} MB/s", count as f64 / 1e6 / took))
            }
            SuccessSign::Rate(unit) => {
                let mut rates = Vec::new();
                // redis-benchmark ends each intermediate line with a carriage return.
                for line in printed.split(['\n', '\r']) {
                    if let Some((before, _)) = line.split_once(&format!(" {unit}")) {
                        let what = before.split_once(':').map_or("", |(what, _)| what);
                        let rate = before.rsplit(' ').next().unwrap_or_default();
                        rates.push(format!("{what} {rate}").trim().to_owned());
                    }
                }
                ensure!(!rates.is_empty(), "the client printed {printed:?}");
                Ok(format!("{} {unit}", rates.join(", ")))
            }
        }
    }
}

/// Starts a server, and waits until it prints that it listens.
fn listen(host: &mut Host, argv: &[String]) -> Result<()> {
    host.start(argv)?;
    ensure!(
        host.wait_for_text("listening on", SERVER_LIMIT)?,
        "{} does not listen: {}",
        argv[0],
        host.finish(SERVER_LIMIT)?
    );
    Ok(())
}

/// Terminates a server, which must exit with status 0.
fn terminate(host: &mut Host) -> Result<String> {
    host.signal("TERM")?;
    let ended = host.finish(SERVER_LIMIT)?;
    ensure!(ended.succeeded(), "{ended}");
    Ok("it ended".to_owned())
}

/// Prints a row of the table.
fn row([service, transport, client, result]: [&str; 4]) {
    println!("{service:<12} {transport:<6} {client:<70} {result}");
}
