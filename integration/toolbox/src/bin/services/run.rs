//! One service after the other, on the other host, and its clients on this one.

use std::{
    env, fs,
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use toolbox::{Deadline, Ended, Heard, Process, agent::Host, network, words};

use crate::plan::{Begun, CERTIFICATE, Expected, Line, PAGE_FILE, Shows, services};

/// How long a server may take to listen or to end, and a client for what it does.
const SERVER_LIMIT: Duration = Duration::from_secs(30);
const CLIENT_LIMIT: Duration = Duration::from_secs(300);

/// In what time a service knows that the network is gone: the keepalive's interval and timeout.
const CUT_LIMIT: Duration = Duration::from_secs(5);

/// Where servers listen, for rdmsg and for plain TCP, and the bridge on this host.
const PORT: u16 = 7480;
const TCP_PORT: u16 = 8080;
const NEAR: &str = "127.0.0.1:6391";

/// The bytes of a file that is copied.
const FILE: u64 = 50_000_000;

/// The other host, and what has come of it.
pub(crate) struct Run {
    host: Host,
    ip: String,
    requests: String,
    /// The bytes of a page.
    page: u64,
    cuts: bool,
    failed: u32,
}

impl Run {
    pub(crate) fn new(host: IpAddr, quick: bool) -> Result<Self> {
        let (requests, page) = if quick {
            (100, 1_000_000)
        } else {
            (10_000, 10_000_000)
        };
        Ok(Self {
            host: Host::connect(host)?,
            ip: host.to_string(),
            requests: requests.to_string(),
            page,
            cuts: !quick,
            failed: 0,
        })
    }

    /// Runs them all, or only those with these names, and returns how much of it failed.
    pub(crate) fn all(mut self, only: &[String]) -> Result<u32> {
        let wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
        let mut services = services()?;
        services.retain(|(name, _)| wanted(name));
        ensure!(!services.is_empty(), "there is no such service");
        make_file()?;
        row(["service", "over", "client", "result"]);
        for (name, lines) in services {
            self.serve(name, &lines)?;
        }
        self.host.quit()?;
        Ok(self.failed)
    }

    fn serve(&mut self, name: &str, lines: &[Line]) -> Result<()> {
        let (mut near, mut end, mut by_rdma) = (None, "", None);
        for line in lines {
            match &line.expected {
                Expected::Behind => drop(self.host.shell(&self.filled(&line.command))?),
                Expected::End => end = &line.command,
                Expected::Server => self.start_server(&line.command)?,
                Expected::Near => near = Some(self.start_near(&line.command)?),
                Expected::Client(shows) => {
                    let over = match &*line.command {
                        _ if near.is_some() => "bridge",
                        command if command.contains("RDMSG") => "RDMA",
                        command if command.contains("/tmp/sums") => "-",
                        _ => "TCP",
                    };
                    let came = self.ask(&line.command, shows);
                    self.tell(name, over, &line.command, came);
                    if over != "TCP" {
                        by_rdma = by_rdma.or(Some((over, &line.command, shows)));
                    }
                }
                Expected::Cut(begun, error) if self.cuts => {
                    let came = self.cut(&line.command, begun, error);
                    self.tell(name, "cut", &line.command, came);
                    // The server has to have others.
                    if let Some((over, next, shows)) = by_rdma {
                        let came = self.ask(next, shows);
                        self.tell(name, over, next, came);
                    }
                }
                Expected::Cut(..) => {}
            }
        }
        if let Some(near) = near {
            near.signal(Signal::SIGTERM)?;
            let came = went_well(near.finish(SERVER_LIMIT)?);
            self.tell(name, "-", "SIGTERM, the near one", came);
        }
        self.host.signal("TERM")?;
        let ended = self.host.finish(SERVER_LIMIT)?;
        self.tell(name, "-", "SIGTERM", went_well(ended));
        self.host.shell(end)?;
        Ok(())
    }

    fn start_server(&mut self, line: &str) -> Result<()> {
        self.host.start(&self.argv(line)?)?;
        if self.host.hear("listening on", SERVER_LIMIT)? != Heard::Said {
            let ended = self.host.finish(SERVER_LIMIT)?;
            bail!("{line} does not listen: {}", ended.output);
        }
        if line.contains(CERTIFICATE) {
            let (_, certificate) = self.host.shell(&format!("cat {CERTIFICATE}"))?;
            fs::write(CERTIFICATE, certificate)?;
        }
        Ok(())
    }

    fn start_near(&self, line: &str) -> Result<Process> {
        let mut near = Process::start(&self.argv(line)?)?;
        match near.hear("listening on", SERVER_LIMIT) {
            Heard::Said => Ok(near),
            _ => bail!("{line}: {}", near.kill()?.output),
        }
    }

    fn tell(&mut self, name: &str, over: &str, client: &str, came: Result<String>) {
        let came = came.unwrap_or_else(|error| {
            self.failed += 1;
            format!("FAILED: {error:#}")
        });
        row([name, over, client, &came]);
    }

    /// A line with the addresses and counts of this run.
    fn filled(&self, line: &str) -> String {
        let tcp = format!("{}:{TCP_PORT}", self.ip);
        let rdmsg = format!("{}:{PORT}", self.ip);
        line.replace("RDMSG", &rdmsg)
            .replace("TCP", &tcp)
            .replace("NEAR", NEAR)
            .replace("PAGE", &self.page.to_string())
            .replace("PORT", &TCP_PORT.to_string())
            .replace("IP", &self.ip)
    }

    /// The words of a line, with the program's path where it is one of ours.
    fn argv(&self, line: &str) -> Result<Vec<String>> {
        let mut argv = words(&self.filled(line));
        for word in &mut argv {
            if word == "N" {
                word.clone_from(&self.requests);
            }
        }
        let ours = env::current_exe()?.with_file_name(&argv[0]);
        if ours.exists() {
            argv[0] = ours.to_string_lossy().into_owned();
        }
        Ok(argv)
    }

    /// Has the network drop all of RDMA's packets under a client that is at work, and returns how
    /// long it took to say so.
    fn cut(&mut self, line: &str, begun: &Begun, error: &str) -> Result<String> {
        let mut client = Process::start(&self.argv(line)?)?;
        let until =
            |test| format!("for i in $(seq 600); do {test} && exit; sleep 0.05; done; exit 1");
        match begun {
            Begun::Says(text) => {
                let heard = client.hear(text, SERVER_LIMIT);
                ensure!(heard == Heard::Said, "it is never at work");
            }
            Begun::There(test) => drop(self.host.shell(&until(test))?),
            Begun::Here(test) => drop(shell(&until(test))?),
        }
        let drop_all = network::impair("loss 100%");
        shell(&drop_all)?;
        self.host.shell(&drop_all)?;
        let start = Instant::now();
        // A busy host may not know at once, and it has to be said.
        let ended = client.end(Deadline::after(2 * CUT_LIMIT));
        let took = start.elapsed().as_secs_f64();
        self.host.shell(network::REPAIR)?;
        shell(network::REPAIR)?;
        let ended = ended?.context("it goes on without a network")?;
        ensure!(!ended.succeeded(), "it says that all went well");
        let said = &ended.output;
        ensure!(said.contains(error), "it says: {}", said.trim());
        Ok(format!("{error:?}, {took:.1} s"))
    }

    /// Runs a client, and returns what there is to say of it.
    fn ask(&self, line: &str, shows: &Shows) -> Result<String> {
        let start = Instant::now();
        let printed = finish(line, &self.argv(line)?)?;
        let took = start.elapsed().as_secs_f64();
        match shows {
            Shows::Text(text) => {
                ensure!(printed.contains(text), "it printed {printed:?}");
                Ok("ok".to_owned())
            }
            Shows::Page => {
                let count = self.page;
                let came = fs::metadata(PAGE_FILE)?.len();
                ensure!(came == count, "{came} bytes of {count} came");
                fs::remove_file(PAGE_FILE)?;
                Ok(format!("{:.1} MB/s", count as f64 / 1e6 / took))
            }
            Shows::Rate(unit) => {
                let mut rates = Vec::new();
                // A line may be written over by the next.
                for line in printed.split(['\n', '\r']) {
                    if let Some((before, _)) = line.split_once(&format!(" {unit}")) {
                        let what = before.split_once(':').map_or("", |(what, _)| what);
                        let rate = before.rsplit(' ').next().unwrap_or_default();
                        rates.push(format!("{what} {rate}").trim().to_owned());
                    }
                }
                ensure!(!rates.is_empty(), "it printed {printed:?}");
                Ok(format!("{} {unit}", rates.join(", ")))
            }
        }
    }
}

fn went_well(ended: Ended) -> Result<String> {
    ensure!(ended.succeeded(), "{ended}");
    Ok("it ended".to_owned())
}

/// Runs a program to its end, which has to be a good one.
fn finish(line: &str, argv: &[String]) -> Result<String> {
    let process = Process::start(argv).with_context(|| format!("cannot run {line}"))?;
    let ended = process.finish(CLIENT_LIMIT)?;
    match ended.status {
        Some(0) => Ok(ended.output),
        Some(status) => bail!("status {status}: {}", ended.output.trim()),
        None => bail!("it did not end in time: {}", ended.output.trim()),
    }
}

/// Runs a script on this host.
fn shell(script: &str) -> Result<String> {
    finish(script, &["sh", "-c", script].map(str::to_owned))
}

/// Makes the file that is copied, and what is known of its copy.
fn make_file() -> Result<()> {
    fs::write("/tmp/file", pattern::sequence(0, FILE as usize))?;
    let sum = shell("sha256sum /tmp/file")?;
    Ok(fs::write(
        "/tmp/sums",
        sum.replace("/tmp/file", "/tmp/back"),
    )?)
}

/// Prints a line of the table.
fn row([service, over, client, result]: [&str; 4]) {
    println!("{service:<12} {over:<6} {client:<70} {result}");
}
