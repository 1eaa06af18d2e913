use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use rdmsg::{Connector, Endpoint, Listener};
use serde::{Deserialize, Serialize};
use toolbox::Side;

use crate::{manner::Manner, measure::Measure, row::median};

/// The time limit for the peer's next message. If the limit expires, the run fails.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// The traffic between a server and a client of this program.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Traffic {
    pub(crate) server: SocketAddr,
    pub(crate) measure: Measure,
    /// The message size in bytes.
    pub(crate) size: usize,
    /// The number of unmeasured messages at the start.
    pub(crate) warm_up: u64,
    /// The number of measured messages.
    pub(crate) count: u64,
    pub(crate) manner: Manner,
}

/// The result of a run, in the unit of the measure: for instance a time in µs, or a rate in
/// messages per second.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Reading {
    pub(crate) mean: f64,
    /// The median, or `None` if the program determines only the mean.
    pub(crate) median: Option<f64>,
}

/// The recorded durations in µs, and the start of the current round trip.
pub(crate) struct Times {
    micros: Vec<f64>,
    start: Instant,
}

impl Traffic {
    /// Opens the connections, and returns this side's end of each connection. All ends use the
    /// process's shared engine.
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

    /// Returns a reading with the rate of `count` messages since `start`.
    pub(crate) fn rate(count: u64, start: Instant) -> Self {
        Self::mean(count as f64 / start.elapsed().as_secs_f64())
    }
}

impl Times {
    /// Starts the first of `count` round trips.
    pub(crate) fn start(count: u64) -> Self {
        Self {
            micros: Vec::with_capacity(count as usize),
            start: Instant::now(),
        }
    }

    /// Ends a round trip and starts the next one. Records the duration of the ended round trip,
    /// divided by `alike`, which is the number of equal steps in a round trip.
    pub(crate) fn record(&mut self, alike: usize) {
        let now = Instant::now();
        let micros = now.duration_since(self.start).as_secs_f64() * 1e6;
        self.micros.push(micros / alike as f64);
        self.start = now;
    }

    pub(crate) fn reading(&self) -> Reading {
        Reading {
            mean: self.micros.iter().sum::<f64>() / self.micros.len() as f64,
            median: median(&self.micros),
        }
    }
}
