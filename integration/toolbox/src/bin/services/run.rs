//! One service after the other, on the other host, and its clients on this one.

use std::{
    env, fmt, fs,
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use toolbox::{Deadline, Ended, Heard, Process, agent::Host, network, words};

use crate::plan::{Begun, CERTIFICATE, Client, Cut, PAGE_FILE, Service, Shows, services};

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
        services.retain(|service| wanted(service.name()));
        ensure!(!services.is_empty(), "there is no such service");
        make_file()?;
        println!("{}", Row(["service", "over", "client", "result"]));
        for service in services {
            let begin = self.filled(&service.behind);
            self.host.shell(&begin)?;
            self.serve(&service)?;
            self.host.shell(&service.end)?;
        }
        self.host.quit()?;
        Ok(self.failed)
    }

    fn serve(&mut self, service: &Service) -> Result<()> {
        let name = service.name();
        self.host.start(&self.argv(&service.server)?)?;
        let heard = self.host.hear("listening on", SERVER_LIMIT)?;
        if heard != Heard::Said {
            let ended = self.host.finish(SERVER_LIMIT)?;
            bail!("{name} does not listen: {}", ended.output);
        }
        if service.server.contains(CERTIFICATE) {
            let (_, certificate) = self.host.shell(&format!("cat {CERTIFICATE}"))?;
            fs::write(CERTIFICATE, certificate)?;
        }
        let near = service.near.as_deref();
        let near = near.map(|near| self.start_near(near)).transpose()?;
        for client in &service.clients {
            let came = self.ask(client);
            self.tell(name, client.over(service), &client.line, came);
        }
        if let Some(cut) = service.cut.as_ref().filter(|_| self.cuts) {
            let came = self.cut(cut);
            self.tell(name, "cut", &cut.line, came);
            // The server has to have others.
            let mut clients = service.clients.iter();
            if let Some(next) = clients.find(|client| client.over(service) != "TCP") {
                let came = self.ask(next);
                self.tell(name, next.over(service), &next.line, came);
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
        println!("{}", Row([name, over, client, &came]));
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
    fn cut(&mut self, cut: &Cut) -> Result<String> {
        let mut client = Process::start(&self.argv(&cut.line)?)?;
        let until =
            |test| format!("for i in $(seq 600); do {test} && exit; sleep 0.05; done; exit 1");
        match &cut.begun {
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
        ensure!(said.contains(&cut.error), "it says: {}", said.trim());
        Ok(format!("{:?}, {took:.1} s", cut.error))
    }

    /// Runs a client, and returns what there is to say of it.
    fn ask(&self, client: &Client) -> Result<String> {
        let start = Instant::now();
        let printed = finish(&client.line, &self.argv(&client.line)?)?;
        let took = start.elapsed().as_secs_f64();
        match &client.shows {
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

impl Service {
    fn name(&self) -> &str {
        let known = ["nginx", "redis"];
        let known = known.into_iter().find(|name| self.behind.contains(name));
        known.unwrap_or_else(|| self.server.split(' ').next().unwrap_or_default())
    }
}

impl Client {
    /// What it speaks.
    fn over(&self, service: &Service) -> &'static str {
        if service.near.is_some() {
            "bridge"
        } else if self.line.contains("RDMSG") {
            "RDMA"
        } else if self.line.contains("/tmp/sums") {
            "-"
        } else {
            "TCP"
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

/// A line of the table.
struct Row<'a>([&'a str; 4]);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [service, over, client, result] = self.0;
        write!(f, "{service:<12} {over:<6} {client:<70} {result}")
    }
}
