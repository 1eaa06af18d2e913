//! The victim and its honest clients. The victim is a process that echoes messages. It has three
//! listeners on one engine.

use std::{
    array, fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rdmsg::{
    Completion, Config, Connector, Endpoint, Engine, EngineLimits, Listener, Polling, RemoteAccess,
    Stream,
};
use toolbox::{Lab, TIME_LIMIT, agent, pattern, words};

use super::arena::{Arena, RDMA, Site, TCP};
use crate::{
    conduct::{Host, Notes},
    health::Health,
    worker::{Report, report},
};

/// The names of the listeners, in the order in which the victim prints their addresses.
pub(super) const SERVICES: [&str; 3] = ["messages", "shared", "stream"];
/// The index in `SERVICES` of the service with shared receives.
pub(super) const SHARED: usize = 1;
/// The index in `SERVICES` of the stream service.
pub(super) const STREAM: usize = 2;

/// The message with which a peer requests the token of a writable memory region.
pub(super) const REQUEST_REGION: &[u8] = b"lend";

/// The time limit for sending an echo. If a peer does not receive, the victim disconnects this peer
/// after the limit.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// The maximum number of lines that the victim may log per second.
const LINES_A_SECOND: u64 = 10;

/// The number of lines from the end of the victim's log that are printed after a failure.
const LOG_TAIL_LINES: usize = 20;

/// The length of a small message in bytes.
const SMALL: usize = 64;
/// The length of a large message in bytes.
const LARGE: usize = 1 << 20;

/// The value of `HonestClient::len` for a client that opens a new connection for each message.
const CONNECT: usize = 0;

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
        let option = if site.is_rdma() { "--rdma" } else { "" };
        host.start(&format!("victim {option}"))?;
        host.wait("listening", |notes| !notes.listens.is_empty(), TIME_LIMIT)?;
        Ok(Self {
            services: host.notes.listens.clone(),
            host,
            site,
            started: Instant::now(),
        })
    }

    pub(super) fn health(&mut self) -> Result<Health> {
        self.host.notes.health = None;
        self.host.tell("health")?;
        let is_measured = |notes: &Notes| notes.health.is_some();
        let answered = self.host.wait("measured", is_measured, TIME_LIMIT);
        self.check()?;
        answered?;
        let health = self.host.notes.health.take();
        health.context("the victim does not answer")
    }

    /// Fails if the victim has panicked, ended with an error, or logged too many lines.
    pub(super) fn check(&mut self) -> Result<()> {
        while self.host.notes.ended.is_none() && self.host.listen(Duration::ZERO)? {}
        let Notes { log, ended, .. } = &self.host.notes;
        let allowed = LINES_A_SECOND * (self.started.elapsed().as_secs() + 2);
        let problem = if log.iter().any(|line| line.contains("panicked")) {
            "has panicked"
        } else if ended.as_ref().is_some_and(|ended| !ended.succeeded()) {
            "has ended with an error"
        } else if log.len() as u64 > allowed {
            "has logged too many lines"
        } else {
            return Ok(());
        };
        let lines = log[log.len().saturating_sub(LOG_TAIL_LINES)..].join("\n  ");
        bail!("the victim {problem}. The last lines of its log:\n  {lines}")
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.host.tell("end")?;
        let ended = self.host.end(TIME_LIMIT, true);
        self.check()?;
        ended
    }
}

/// An honest client, which repeats one kind of operation.
pub(super) struct HonestClient {
    service: usize,
    /// The length of each message in bytes, or [`CONNECT`] if the client opens a new connection for
    /// each message.
    len: usize,
    /// The pause after each operation.
    pause: Duration,
    /// The open connection, which stays open between phases.
    connection: Option<Echo>,
    /// The 99th percentiles of the durations of the operations, one value per phase. The first list
    /// is for quiet phases, the second for attacks. The value is `Duration::MAX` for a phase
    /// without operations.
    pub(super) percentiles: [Vec<Duration>; 2],
}

/// A connection to a service, as a function that sends a message and returns the echo.
type Echo = Box<dyn FnMut(&[u8]) -> Result<Vec<u8>> + Send>;

/// Returns the honest clients: three per service.
pub(super) fn clients(site: &Site) -> [HonestClient; 9] {
    let kinds = [(SMALL, 10), (LARGE, 100), (CONNECT, 200)];
    array::from_fn(|number| {
        let (len, millis) = kinds[number / SERVICES.len()];
        HonestClient {
            service: number % SERVICES.len(),
            len,
            pause: Duration::from_millis(millis * site.slower),
            connection: None,
            percentiles: Default::default(),
        }
    })
}

impl fmt::Display for HonestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.len {
            CONNECT => "connect",
            SMALL => "64 B",
            _ => "1 MiB",
        };
        f.pad(&format!("{}, {what}", SERVICES[self.service]))
    }
}

impl HonestClient {
    /// Repeats the operation until the phase ends, and records the 99th percentile of the
    /// durations.
    pub(super) fn run(&mut self, arena: &Arena<'_>, engine: &Engine, attacks: bool) -> Result<()> {
        let mut config = config(self.service, arena.site);
        config.connect_timeout = TIME_LIMIT;
        config.keepalive_timeout = TIME_LIMIT;
        let connector = Connector::new().config(&config).engine(engine);
        let mut times = Vec::new();
        while !arena.is_over() {
            let sent = pattern(times.len() as u64, self.len.max(SMALL));
            let started = Instant::now();
            let echo = self.echo(arena.services[self.service], &connector, &sent);
            let echo = echo.with_context(|| format!("the honest client {self}"))?;
            times.push(started.elapsed());
            ensure!(echo == sent, "the honest client {self}: wrong bytes");
            arena.pause(self.pause);
        }
        times.sort_unstable();
        let last = (times.len() * 99).div_ceil(100).checked_sub(1);
        let percentile = last.map_or(Duration::MAX, |last| times[last]);
        self.percentiles[usize::from(attacks)].push(percentile);
        Ok(())
    }

    fn echo(&mut self, addr: SocketAddr, connector: &Connector, sent: &[u8]) -> Result<Vec<u8>> {
        let mut open = match self.connection.take() {
            Some(open) => open,
            None => self.connect(addr, connector)?,
        };
        let echo = open(sent)?;
        // Drop the connection if the client opens a new one for each message.
        self.connection = (self.len != CONNECT).then_some(open);
        Ok(echo)
    }

    fn connect(&self, addr: SocketAddr, connector: &Connector) -> Result<Echo> {
        if self.service != STREAM {
            let endpoint = connector.connect(addr)?;
            return Ok(Box::new(move |sent| {
                endpoint.send_timeout(sent, TIME_LIMIT)?;
                Ok(endpoint.recv_timeout(TIME_LIMIT)?.into_vec())
            }));
        }
        let mut stream = connector.connect_stream(addr)?;
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        stream.set_write_timeout(Some(TIME_LIMIT))?;
        let mut writer = stream.try_clone()?;
        Ok(Box::new(move |sent| {
            let mut echo = vec![0; sent.len()];
            // Write in another thread. The server echoes before it has read the whole message. If
            // this thread wrote the whole message before reading the echo, both sides could wait
            // forever.
            thread::scope(|scope| {
                let writing = scope.spawn(|| writer.write_all(sent));
                stream.read_exact(&mut echo)?;
                writing.join().expect("the writer must not panic")?;
                Ok(echo)
            })
        }))
    }
}

/// Returns the victim's configuration of a service. Honest clients use the same configuration with
/// longer timeouts.
pub(super) fn config(service: usize, site: &Site) -> Config {
    let mut config = Config::default();
    config.transport = site.transport;
    // The timeouts are long so that the victim does not disconnect honest clients on a busy
    // machine.
    config.connect_timeout = TIME_LIMIT / 3;
    config.keepalive_timeout = TIME_LIMIT / 3;
    // Do not spin, because a spinning thread takes processor time from other threads.
    config.polling = Polling::Event;
    config.max_message = site.longest;
    if service == SHARED {
        config.shared_receive = Some(2048);
        config.eager_size = Some(4096);
    }
    config
}

/// Runs the victim until its stdin is closed or contains the line "end".
pub(crate) fn run(over_rdma: bool) -> Result<()> {
    let logger = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(logger).init();
    let lab = over_rdma.then(Lab::find).transpose()?;
    let (address, site) = match &lab {
        Some(lab) => (lab.at(0), &RDMA),
        None => ("127.0.0.1:0".parse()?, &TCP),
    };
    // `held` is the size of four messages of the maximum length. The honest clients need much less.
    // Attackers announce more.
    let mut limits = EngineLimits::default();
    limits.pinned = 32 << 20;
    limits.held = 4 * site.longest;
    let engine = Engine::with_limits(limits)?;
    let mut services = Vec::new();
    // The threads end silently if a listener fails. The honest clients then report errors.
    for service in 0..SERVICES.len() {
        let config = config(service, site);
        let builder = Listener::builder().config(&config).engine(&engine);
        if service == STREAM {
            let listener = builder.bind_stream(address)?;
            services.push(listener.local_addr()?);
            thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    thread::spawn(move || echo_stream(&stream));
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
    report(&Report::Listens(services));
    for line in io::stdin().lock().lines() {
        if line? == "end" {
            break;
        }
        let now = engine.statistics().context("the engine has ended")?;
        // Pass 0 as the number of RNR NAKs. Attackers ignore the victim's credits, so RNR NAKs are
        // not errors here.
        let mut health = Health::now(lab.as_ref().map(objects).unwrap_or_default(), 0)?;
        health.connections = now.connections;
        health.budget = now.pinned + now.held;
        report(&Report::Health(health));
    }
    engine.shutdown();
    Ok(())
}

/// Counts the objects that all processes together have on the device. Includes only the kinds of
/// objects that each connection creates. Excludes memory regions, because messages create them at
/// any time. The bytes of these regions are instead counted in the budget, as pinned bytes.
fn objects(lab: &Lab) -> String {
    let words = words(&lab.resources());
    let pairs = words.chunks(2);
    let counts = pairs.filter(|pair| ["qp", "cq", "srq", "cm_id"].contains(&&*pair[0]));
    counts.collect::<Vec<_>>().concat().join(" ")
}

/// Echoes each message. Returns when the peer disconnects, or does not receive an echo within 1 s.
fn echo(endpoint: &Endpoint) -> Option<()> {
    // The writable memory region of this connection. The peer requests the region's token with
    // `REQUEST_REGION`.
    let mut region = None;
    loop {
        match endpoint.next_completion().ok()? {
            Completion::Received(message) if *message == *REQUEST_REGION => {
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

fn echo_stream(stream: &Stream) -> io::Result<u64> {
    stream.set_write_timeout(Some(SEND_LIMIT))?;
    let mut received = BufReader::with_capacity(64 << 10, stream);
    io::copy(&mut received, &mut &*stream)
}
