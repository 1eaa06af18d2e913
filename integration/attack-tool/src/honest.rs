use std::{
    io::{Read, Write},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use rdmsg::{Connector, Endpoint, Engine, Stream, Transport};
use toolbox::{PATIENCE, check, fill, pattern};

use crate::{
    phases::{Phase, Phases},
    victim::{SERVICES, STREAM, config},
};

/// Bytes of a small message, and of a large one.
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;

/// A connection that is made for one message.
const CONNECT: usize = 0;

/// An honest client, which repeats one operation.
#[derive(Debug)]
pub(crate) struct Honest {
    service: usize,
    /// Bytes of each message; [`CONNECT`] for a new connection each time.
    len: usize,
    /// Between two operations.
    pause: Duration,
    samples: Mutex<Vec<(Phase, Duration)>>,
}

/// A connection to a service.
enum Connection {
    Messages(Endpoint),
    Stream(Box<Stream>),
}

/// The clients of all services.
pub(crate) fn clients(transport: Transport) -> Vec<Arc<Honest>> {
    // The device of the lab is software, on emulated processors.
    let slower = if transport == Transport::Rdma { 5 } else { 1 };
    let of = |len: usize, millis: u64| {
        (0..SERVICES.len()).map(move |service| {
            Arc::new(Honest {
                service,
                len,
                pause: Duration::from_millis(millis * slower),
                samples: Mutex::default(),
            })
        })
    };
    of(SMALL, 10)
        .chain(of(LARGE, 100))
        .chain(of(CONNECT, 200))
        .collect()
}

impl Honest {
    pub(crate) fn name(&self) -> String {
        let service = SERVICES[self.service];
        match self.len {
            CONNECT => format!("{service}, connect"),
            SMALL => format!("{service}, 64 B"),
            _ => format!("{service}, 1 MiB"),
        }
    }

    /// The times of the operations that began in each of these phases.
    pub(crate) fn times(&self, wanted: Phase) -> Vec<Duration> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let of_phase = samples.iter().filter(|(phase, _)| *phase == wanted);
        of_phase.map(|(_, time)| *time).collect()
    }

    /// Starts it. It ends with the run, or with its first error, which fails the run.
    pub(crate) fn start(
        self: &Arc<Self>,
        addr: SocketAddr,
        engine: &Engine,
        transport: Transport,
        phases: &Arc<Phases>,
    ) -> JoinHandle<()> {
        let mut config = config(self.service, transport);
        config.connect_timeout = PATIENCE;
        config.keepalive_timeout = PATIENCE;
        let connector = Connector::new().config(config).engine(engine);
        let (this, phases) = (Arc::clone(self), Arc::clone(phases));
        thread::spawn(move || {
            if let Err(error) = this.run(addr, &connector, &phases) {
                phases.fail(format!("an honest client ({}): {error:#}", this.name()));
            }
        })
    }

    fn run(&self, addr: SocketAddr, connector: &Connector, phases: &Phases) -> Result<()> {
        let mut connection = None;
        let mut bytes = vec![0; self.len.max(SMALL)];
        for number in 0.. {
            let Some(phase) = phases.enter() else {
                break;
            };
            let started = Instant::now();
            let result = self.once(&mut connection, addr, connector, number, &mut bytes);
            let time = started.elapsed();
            phases.leave();
            result?;
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.push((phase, time));
            drop(samples);
            thread::sleep(self.pause);
        }
        match connection {
            Some(Connection::Messages(endpoint)) => Ok(endpoint.close()?),
            Some(Connection::Stream(_)) | None => Ok(()),
        }
    }

    /// One round trip, over a connection that it makes if there is none.
    fn once(
        &self,
        connection: &mut Option<Connection>,
        addr: SocketAddr,
        connector: &Connector,
        number: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let open = match connection {
            Some(open) => open,
            None if self.service == STREAM => {
                let stream = connector.connect_stream(addr)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                connection.insert(Connection::Stream(Box::new(stream)))
            }
            None => connection.insert(Connection::Messages(connector.connect(addr)?)),
        };
        match open {
            Connection::Messages(endpoint) => {
                fill(number, bytes);
                endpoint.send_timeout(bytes, PATIENCE)?;
                let echo = endpoint.recv_timeout(PATIENCE)?;
                check(number, bytes.len(), &echo).map_err(|what| anyhow!("wrong bytes: {what}"))?;
            }
            Connection::Stream(stream) => {
                let sent = pattern(number, bytes.len());
                let writer = stream.try_clone()?;
                // The server echoes while it reads, so both directions go at the same time.
                thread::scope(|scope| {
                    let writing = scope.spawn(|| (&writer).write_all(&sent));
                    stream.read_exact(bytes)?;
                    writing.join().map_err(|_| anyhow!("a writer panicked"))??;
                    anyhow::Ok(())
                })?;
                ensure!(*bytes == sent, "wrong bytes in a stream");
            }
        }
        if self.len == CONNECT {
            *connection = None;
        }
        Ok(())
    }
}
