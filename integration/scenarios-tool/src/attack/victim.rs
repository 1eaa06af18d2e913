//! The process that is attacked: three listeners on one engine, whose connections echo.

use std::{
    env,
    io::{self, BufRead, Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rdmsg::{
    Completion, Config, Endpoint, Engine, EngineLimits, Listener, Polling, RemoteAccess, Stream,
};
use toolbox::{Lab, Line, PATIENCE, Process, words};

use super::arena::{RDMA, Site, TCP};
use crate::{RETURNING_MEMORY, health::Health};

/// The listeners, in the order in which their ports are printed.
pub(super) const SERVICES: [&str; 3] = ["messages", "shared", "stream"];
/// The service with shared receives.
pub(super) const SHARED: usize = 1;
/// The service of streams.
pub(super) const STREAM: usize = 2;

/// The first message of a peer that asks for the token of writable memory.
pub(super) const LEND: &[u8] = b"lend";

/// The time after which the victim gives a peer up that takes no echo.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// The lines that the victim may log in a second.
const LINES_A_SECOND: u64 = 10;

/// The last lines of its log that are printed.
const LAST_WORDS: usize = 20;

/// The victim's process.
#[derive(Debug)]
pub(super) struct Victim {
    process: Process,
    pub(super) site: &'static Site,
    pub(super) services: Vec<SocketAddr>,
    started: Instant,
    /// Lines on stderr.
    log: Vec<String>,
}

impl Victim {
    pub(super) fn start(site: &'static Site) -> Result<Self> {
        let program = env::current_exe()?.display().to_string();
        let mut argv = words(RETURNING_MEMORY);
        argv.extend([program, "victim".to_owned()]);
        argv.extend(site.is_rdma().then(|| "--rdma".to_owned()));
        let mut victim = Self {
            process: Process::start_told(&argv)?,
            site,
            services: Vec::new(),
            started: Instant::now(),
            log: Vec::new(),
        };
        victim.services = serde_json::from_str(&victim.hear()?)?;
        Ok(victim)
    }

    /// Its next line on stdout.
    fn hear(&mut self) -> Result<String> {
        loop {
            match self.process.line(PATIENCE) {
                Some(Line::Err(line)) => self.log.push(line),
                Some(Line::Out(line)) => return Ok(line),
                None => {
                    self.look()?;
                    bail!("the victim does not answer");
                }
            }
        }
    }

    pub(super) fn health(&mut self) -> Result<Health> {
        self.process.tell("health");
        Ok(serde_json::from_str(&self.hear()?)?)
    }

    /// Fails if it has ended, panicked, or logged too much.
    pub(super) fn look(&mut self) -> Result<()> {
        while let Some(line) = self.process.line(Duration::ZERO) {
            match line {
                Line::Err(line) => self.log.push(line),
                Line::Out(line) => bail!("the victim says {line:?}"),
            }
        }
        let allowed = LINES_A_SECOND * (self.started.elapsed().as_secs() + 2);
        let problem = if self.log.iter().any(|line| line.contains("panicked")) {
            "has panicked"
        } else if self.process.has_ended()? {
            "has ended"
        } else if self.log.len() as u64 > allowed {
            "has logged too many lines"
        } else {
            return Ok(());
        };
        let first = self.log.len().saturating_sub(LAST_WORDS);
        let lines = self.log[first..].join("\n  ");
        bail!("the victim {problem}. Its last lines:\n  {lines}")
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.look()?;
        self.process.tell("end");
        let ended = self.process.finish(PATIENCE)?;
        let is_well = ended.succeeded() && !ended.output.contains("panicked");
        ensure!(is_well, "the victim ended: {ended}");
        Ok(())
    }
}

/// The configuration of a service, for both sides. Honest clients have more patience.
pub(super) fn config(service: usize, site: &Site) -> Config {
    let mut config = Config::default();
    config.transport = site.transport;
    // A busy machine is no reason to give an honest client up, or to turn it away.
    config.connect_timeout = PATIENCE / 3;
    config.keepalive_timeout = PATIENCE / 3;
    // A thread that spins takes a processor from the others.
    config.polling = Polling::Event;
    config.max_message = site.longest;
    if service == SHARED {
        config.shared_receive = Some(2048);
        config.eager_size = Some(4096);
    }
    config
}

/// Serves until stdin ends, or has the line "end".
pub(crate) fn run(over_rdma: bool) -> Result<()> {
    let logger = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(logger).init();
    let lab = over_rdma.then(Lab::find).transpose()?;
    let (address, site) = match &lab {
        Some(lab) => (lab.at(0), &RDMA),
        None => ("127.0.0.1:0".parse()?, &TCP),
    };
    // Memory for four of the longest messages, and so for a hundred of the honest clients': less
    // than the attackers announce.
    let mut limits = EngineLimits::default();
    limits.pinned = 32 << 20;
    limits.held = 4 * site.longest;
    let engine = Engine::with_limits(limits)?;
    let mut services = Vec::new();
    // Honest clients notice the end of a listener.
    for service in 0..SERVICES.len() {
        let config = config(service, site);
        let builder = Listener::builder().config(&config).engine(&engine);
        if service == STREAM {
            let listener = builder.bind_stream(address)?;
            services.push(listener.local_addr()?);
            thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    thread::spawn(move || echo_stream(stream));
                }
            });
        } else {
            let listener = builder.bind(address)?;
            services.push(listener.local_addr());
            thread::spawn(move || {
                for endpoint in listener.incoming().map_while(Result::ok) {
                    thread::spawn(move || echo(&endpoint));
                }
            });
        }
    }
    println!("{}", serde_json::to_string(&services)?);
    for line in io::stdin().lock().lines() {
        if line? == "end" {
            break;
        }
        let now = engine.statistics().context("the engine has ended")?;
        // Attackers ignore the credits of the victim, so receivers without a receive do not count.
        let mut health = Health::now(lab.as_ref().map(objects).unwrap_or_default(), 0)?;
        health.connections = now.connections;
        health.budget = now.pinned + now.held;
        println!("{}", serde_json::to_string(&health)?);
    }
    engine.shutdown();
    Ok(())
}

/// The objects of all processes on the device that come and go with connections. Registrations of
/// memory come and go with messages as well; their bytes count as pinned.
fn objects(lab: &Lab) -> String {
    let words = words(&lab.resources());
    let pairs = words.chunks(2);
    let counts = pairs.filter(|pair| ["qp", "cq", "srq", "cm_id"].contains(&&*pair[0]));
    counts.collect::<Vec<_>>().concat().join(" ")
}

/// Sends each message back, until the peer leaves or takes none for a second.
fn echo(endpoint: &Endpoint) -> Option<()> {
    // Memory of its own, whose token a hostile peer gets as an honest one would.
    let mut region = None;
    loop {
        match endpoint.next_completion().ok()? {
            Completion::Received(message) if *message == *LEND => {
                let lent = endpoint.one_sided().region(4096, RemoteAccess::ALL).ok()?;
                let token = lent.remote().to_bytes();
                region = Some(lent);
                endpoint.send_timeout(&token, SEND_LIMIT).ok()?;
            }
            Completion::Received(message) => endpoint.send_timeout(&message, SEND_LIMIT).ok()?,
            Completion::Finished | Completion::Disconnected(_) => break,
            _ => {}
        }
    }
    drop(region);
    Some(())
}

fn echo_stream(mut stream: Stream) -> io::Result<()> {
    stream.set_write_timeout(Some(SEND_LIMIT))?;
    let mut bytes = vec![0; 64 << 10];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            len => stream.write_all(&bytes[..len])?,
        }
    }
}
