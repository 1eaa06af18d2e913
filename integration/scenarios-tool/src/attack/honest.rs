use std::{
    array, fmt,
    io::{Read, Write},
    net::SocketAddr,
    sync::{PoisonError, RwLock},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use rdmsg::{Connector, Engine, TransportChoice};
use toolbox::{PATIENCE, pattern};

use super::{
    Phase,
    victim::{SERVICES, STREAM, config},
};

/// Bytes of a small message, and of a large one.
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;

/// The time between two looks at the phase.
const LOOK: Duration = Duration::from_millis(5);

/// A connection that is made for one message.
const CONNECT: usize = 0;

/// An honest client, which repeats one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Honest {
    pub(super) service: usize,
    /// Bytes of each message; [`CONNECT`] for a new connection each time.
    len: usize,
    /// The time between two operations.
    pause: Duration,
}

/// The times of a client's operations, by the phase in which each began.
pub(super) type Samples = Vec<(Phase, Duration)>;

/// A connection to a service, which returns the echo of a message.
type Echo = Box<dyn FnMut(&[u8]) -> Result<Vec<u8>>>;

/// The clients of all services.
pub(super) fn clients(transport: TransportChoice) -> [Honest; 9] {
    // The device of the lab is software, on emulated processors.
    let slower = if transport == TransportChoice::Rdma {
        5
    } else {
        1
    };
    let kinds = [(SMALL, 10), (LARGE, 100), (CONNECT, 200)];
    array::from_fn(|number| {
        let (len, millis) = kinds[number / SERVICES.len()];
        Honest {
            service: number % SERVICES.len(),
            len,
            pause: Duration::from_millis(millis * slower),
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
    /// Works until the end of the run. It holds the lock during each operation, so whoever has the
    /// lock for writing knows that no operation is in flight.
    pub(super) fn run(
        &self,
        addr: SocketAddr,
        engine: &Engine,
        transport: TransportChoice,
        phase: &RwLock<Phase>,
        samples: &mut Samples,
    ) -> Result<()> {
        let mut config = config(self.service, transport);
        config.connect_timeout = PATIENCE;
        config.keepalive_timeout = PATIENCE;
        let connector = Connector::new().config(&config).engine(engine);
        let mut connection = None;
        for number in 0.. {
            let guard = phase.read().unwrap_or_else(PoisonError::into_inner);
            match *guard {
                Phase::Quiet(_) | Phase::Attack(_) => {}
                Phase::Pause => {
                    drop(guard);
                    thread::sleep(LOOK);
                    continue;
                }
                Phase::Over => break,
            }
            let started = Instant::now();
            let mut open = match connection.take() {
                Some(open) => open,
                None => self.connect(addr, &connector)?,
            };
            let sent = pattern(number, self.len.max(SMALL));
            ensure!(open(&sent)? == sent, "wrong bytes");
            // A connection for one message is dropped here.
            connection = (self.len != CONNECT).then_some(open);
            samples.push((*guard, started.elapsed()));
            drop(guard);
            thread::sleep(self.pause);
        }
        Ok(())
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
