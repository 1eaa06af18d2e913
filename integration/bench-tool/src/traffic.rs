use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use rdmsg::{Connector, Endpoint, Listener};
use serde::{Deserialize, Serialize};
use toolbox::Side;

use crate::{manner::Manner, measure::Measure};

/// The longest silence of a peer. After it the run has failed.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// The traffic of an rdmsg server and client.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Traffic {
    pub(crate) server: SocketAddr,
    pub(crate) measure: Measure,
    /// The length of a message in bytes.
    pub(crate) size: usize,
    /// The number of measured messages.
    pub(crate) count: u64,
    pub(crate) manner: Manner,
}

/// The result of one run of a program, in microseconds or in messages a second.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Reading {
    pub(crate) mean: f64,
    /// The median, which some programs do not print.
    pub(crate) median: Option<f64>,
}

/// The durations of many round trips.
pub(crate) struct Times {
    nanos: Vec<u32>,
    start: Instant,
}

impl Traffic {
    /// Returns the number of unmeasured messages at the start, at least one on each connection.
    pub(crate) fn warm_up(&self) -> u64 {
        (self.count / 10).max(self.manner.connections.into())
    }

    /// Returns this side's ends of all connections, on the engine of the process.
    pub(crate) fn endpoints(&self, side: Side) -> Result<Vec<Endpoint>> {
        let config = self.manner.config(self.size);
        let count = 0..self.manner.connections;
        let endpoints: Result<_, rdmsg::Error> = match side {
            Side::Server => {
                let listener = Listener::builder().config(&config).bind(self.server)?;
                count.map(|_| listener.accept_timeout(SILENCE)).collect()
            }
            Side::Client => {
                let connector = Connector::new().config(&config);
                count.map(|_| connector.connect(self.server)).collect()
            }
        };
        Ok(endpoints?)
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
    /// Starts the first round trip.
    pub(crate) fn start(count: u64) -> Self {
        Self {
            nanos: Vec::with_capacity(count as usize),
            start: Instant::now(),
        }
    }

    /// Ends a round trip, which counts as `alike` equal ones, and starts the next.
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
