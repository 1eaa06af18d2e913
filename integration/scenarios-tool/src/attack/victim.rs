//! The process that is attacked: three listeners on one engine, whose connections echo.

use std::{
    io::{self, BufRead, Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rdmsg::{
    Completion, Config, Endpoint, Engine, EngineLimits, Listener, Polling, RemoteAccess, Stream,
};
use toolbox::{Lab, PATIENCE, agent, words};

use super::arena::{RDMA, Site, TCP};
use crate::{
    conduct::{Host, Notes},
    health::Health,
    worker::{Said, say},
};

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
    host: Host,
    pub(super) site: &'static Site,
    pub(super) services: Vec<SocketAddr>,
    started: Instant,
}

impl Victim {
    pub(super) fn start(site: &'static Site) -> Result<Self> {
        let mut host = Host::new("victim", agent::Host::here());
        host.start(&words(if site.is_rdma() {
            "victim --rdma"
        } else {
            "victim"
        }))?;
        host.wait("there", |notes| !notes.listens.is_empty(), PATIENCE)?;
        Ok(Self {
            services: host.notes.listens.clone(),
            host,
            site,
            started: Instant::now(),
        })
    }

    pub(super) fn health(&mut self) -> Result<Health> {
        self.host.notes.health = None;
        self.host.agent.tell("health")?;
        let answered = self
            .host
            .wait("well", |notes| notes.health.is_some(), PATIENCE);
        self.look()?;
        answered?;
        self.host
            .notes
            .health
            .take()
            .context("the victim does not answer")
    }

    /// Fails if it has ended, panicked, or logged too much.
    pub(super) fn look(&mut self) -> Result<()> {
        while self.host.notes.ended.is_none() && self.host.listen(Duration::ZERO)? {}
        let Notes { words, ended, .. } = &self.host.notes;
        let allowed = LINES_A_SECOND * (self.started.elapsed().as_secs() + 2);
        let problem = if words.iter().any(|line| line.contains("panicked")) {
            "has panicked"
        } else if ended.as_ref().is_some_and(|ended| !ended.succeeded()) {
            "has ended"
        } else if words.len() as u64 > allowed {
            "has logged too many lines"
        } else {
            return Ok(());
        };
        let lines = words[words.len().saturating_sub(LAST_WORDS)..].join("\n  ");
        bail!("the victim {problem}. Its last lines:\n  {lines}")
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.host.agent.tell("end")?;
        let ended = self.host.end(PATIENCE, true);
        self.look()?;
        ended
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
    say(&Said::Listens(services));
    for line in io::stdin().lock().lines() {
        if line? == "end" {
            break;
        }
        let now = engine.statistics().context("the engine has ended")?;
        // Attackers ignore the credits of the victim, so receivers without a receive do not count.
        let mut health = Health::now(lab.as_ref().map(objects).unwrap_or_default(), 0)?;
        health.connections = now.connections;
        health.budget = now.pinned + now.held;
        say(&Said::Health(health));
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
