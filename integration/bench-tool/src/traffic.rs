use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::Result;
use rdmsg::{Connector, Endpoint, Engine, Listener};
use serde::{Deserialize, Serialize};

use crate::{manner::Manner, measure::Measure};

/// How long a peer may be silent before a run counts as failed.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// The traffic of an rdmsg server and client.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Traffic {
    /// The server's.
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) measure: Measure,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// The number of measured messages.
    pub(crate) count: u64,
    pub(crate) manner: Manner,
}

/// The result of one run of a program, in microseconds or in messages a second.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Reading {
    pub(crate) mean: f64,
    /// Some programs do not print it.
    pub(crate) median: Option<f64>,
}

/// Measures the duration of each of many round trips.
pub(crate) struct Times {
    nanos: Vec<u32>,
    start: Instant,
}

impl Traffic {
    pub(crate) fn server(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Returns the number of unmeasured messages at the start, at least one on each connection.
    pub(crate) fn warm_up(&self) -> u64 {
        (self.count / 10).max(self.manner.connections.into())
    }

    /// Takes all of a client's connections.
    pub(crate) fn accept(&self, engine: &Engine) -> Result<Vec<Endpoint>> {
        let builder = Listener::builder().config(&self.manner.config(self.size));
        let listener = builder.engine(engine).bind(self.server())?;
        let accepted = (0..self.manner.connections).map(|_| listener.accept_timeout(SILENCE));
        Ok(accepted.collect::<Result<_, _>>()?)
    }

    pub(crate) fn connect(&self, engine: &Engine) -> Result<Vec<Endpoint>> {
        let connector = Connector::new()
            .config(&self.manner.config(self.size))
            .engine(engine);
        let connected = (0..self.manner.connections).map(|_| connector.connect(self.server()));
        Ok(connected.collect::<Result<_, _>>()?)
    }
}

impl Reading {
    pub(crate) fn mean(mean: f64) -> Self {
        Self { mean, median: None }
    }

    /// Returns the rate of `count` messages since `start`.
    pub(crate) fn rate(count: u64, start: Instant) -> Self {
        Self::mean(count as f64 / start.elapsed().as_secs_f64())
    }
}

impl Times {
    /// Starts with the first one.
    pub(crate) fn start(count: u64) -> Self {
        Self {
            nanos: Vec::with_capacity(count as usize),
            start: Instant::now(),
        }
    }

    /// Ends one, which counts as `alike` equal ones, and begins the next.
    pub(crate) fn record(&mut self, alike: u32) {
        let now = Instant::now();
        let each = now.duration_since(self.start) / alike;
        self.nanos.push(each.as_nanos() as u32);
        self.start = now;
    }

    pub(crate) fn reading(mut self) -> Reading {
        let all: u64 = self.nanos.iter().copied().map(u64::from).sum();
        self.nanos.sort_unstable();
        let middle = self.nanos.get(self.nanos.len() / 2);
        Reading {
            mean: all as f64 / self.nanos.len() as f64 / 1e3,
            median: middle.map(|nanos| f64::from(*nanos) / 1e3),
        }
    }
}
