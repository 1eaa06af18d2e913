use std::{
    array, fmt,
    io::{Read, Write},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use rdmsg::{Connector, Engine};
use toolbox::{PATIENCE, pattern};

use super::{
    arena::{Arena, Site},
    victim::{SERVICES, STREAM, config},
};

/// Bytes of a small message, and of a large one.
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;

/// A connection that is made for one message.
const CONNECT: usize = 0;

/// An honest client, which repeats one operation.
pub(super) struct Honest {
    service: usize,
    /// Bytes of each message; [`CONNECT`] for a new connection each time.
    len: usize,
    /// The time between two operations.
    pause: Duration,
    /// The connection, which goes on from phase to phase.
    connection: Option<Echo>,
}

/// A connection to a service, which returns the echo of a message.
type Echo = Box<dyn FnMut(&[u8]) -> Result<Vec<u8>> + Send>;

/// The clients of all services.
pub(super) fn clients(site: &Site) -> [Honest; 9] {
    let kinds = [(SMALL, 10), (LARGE, 100), (CONNECT, 200)];
    array::from_fn(|number| {
        let (len, millis) = kinds[number / SERVICES.len()];
        Honest {
            service: number % SERVICES.len(),
            len,
            pause: Duration::from_millis(millis * site.slower),
            connection: None,
        }
    })
}

impl fmt::Display for Honest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.len {
            CONNECT => "connect",
            SMALL => "64 B",
            _ => "1 MiB",
        };
        f.pad(&format!("{}, {what}", SERVICES[self.service]))
    }
}

impl Honest {
    /// Works until the end of a phase. Returns the 99th percentile of the times of its operations;
    /// without an operation it is endless.
    pub(super) fn run(&mut self, arena: &Arena<'_>, engine: &Engine) -> Result<Duration> {
        let mut config = config(self.service, arena.site);
        config.connect_timeout = PATIENCE;
        config.keepalive_timeout = PATIENCE;
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
        Ok(last.map_or(Duration::MAX, |last| times[last]))
    }

    fn echo(&mut self, addr: SocketAddr, connector: &Connector, sent: &[u8]) -> Result<Vec<u8>> {
        let mut open = match self.connection.take() {
            Some(open) => open,
            None => self.connect(addr, connector)?,
        };
        let echo = open(sent)?;
        // A connection for one message is dropped here.
        self.connection = (self.len != CONNECT).then_some(open);
        Ok(echo)
    }

    fn connect(&self, addr: SocketAddr, connector: &Connector) -> Result<Echo> {
        if self.service != STREAM {
            let endpoint = connector.connect(addr)?;
            return Ok(Box::new(move |sent| {
                endpoint.send_timeout(sent, PATIENCE)?;
                Ok(endpoint.recv_timeout(PATIENCE)?.into_vec())
            }));
        }
        let mut stream = connector.connect_stream(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut writer = stream.try_clone()?;
        Ok(Box::new(move |sent| {
            let mut echo = vec![0; sent.len()];
            // The server echoes while it reads, so both directions go at the same time.
            thread::scope(|scope| {
                let writing = scope.spawn(|| writer.write_all(sent));
                stream.read_exact(&mut echo)?;
                writing.join().map_err(|_| anyhow!("a writer panicked"))??;
                Ok(echo)
            })
        }))
    }
}
