use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use rdmsg::{Connector, Endpoint, Engine, Error, Listener};

use crate::manner::Manner;

/// What an rdmsg server and client send each other to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Traffic {
    /// The server's address
    #[arg(long)]
    pub(crate) address: IpAddr,
    #[arg(long)]
    pub(crate) port: u16,
    #[arg(long, value_enum)]
    pub(crate) test: Test,
    /// Bytes of a message
    #[arg(long)]
    pub(crate) size: usize,
    /// How many messages are measured
    #[arg(long)]
    pub(crate) count: u64,
    #[command(flatten)]
    pub(crate) manner: Manner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// One message at a time, sent back by the server
    Latency,
    /// Messages one after the other to the server, which answers the last one
    Bandwidth,
}

/// How long a peer may be silent before a run counts as failed.
const SILENCE: Duration = Duration::from_secs(60);

impl Traffic {
    /// Serves one client.
    pub(crate) fn serve(&self) -> Result<()> {
        let engine = Engine::new()?;
        let address = SocketAddr::new(self.address, self.port);
        let listener = Listener::bind_with(address, &self.manner.config(), &engine)?;
        let endpoint = listener.accept_timeout(SILENCE)?;
        match self.test {
            Test::Latency => self.send_back(&endpoint)?,
            Test::Bandwidth => {
                for count in [self.warm_up(), self.count] {
                    for _ in 0..count {
                        endpoint.recv_timeout(SILENCE)?;
                    }
                    endpoint.send(&[])?;
                }
            }
        }
        // The client ends the connection when it has what it wants.
        let _ = endpoint.recv_timeout(SILENCE);
        drop(endpoint);
        engine.shutdown();
        Ok(())
    }

    fn send_back(&self, endpoint: &Endpoint) -> Result<()> {
        for _ in 0..self.warm_up() + self.count {
            let message = endpoint.recv_timeout(SILENCE)?;
            endpoint.send(&message)?;
        }
        Ok(())
    }

    /// Measures against a server.
    pub(crate) fn measure(&self) -> Result<Figures> {
        let engine = Engine::new()?;
        let endpoint = Connector::new()
            .config(self.manner.config())
            .engine(&engine)
            .connect(SocketAddr::new(self.address, self.port))?;
        let message = vec![0x5a; self.size];
        let figures = match self.test {
            Test::Latency => {
                self.round_trips(&endpoint, &message, self.warm_up())?;
                self.round_trips(&endpoint, &message, self.count)?
            }
            Test::Bandwidth => {
                self.stream(&endpoint, &message, self.warm_up())?;
                self.stream(&endpoint, &message, self.count)?
            }
        };
        endpoint.close()?;
        drop(endpoint);
        engine.shutdown();
        Ok(figures)
    }

    fn round_trips(&self, endpoint: &Endpoint, message: &[u8], count: u64) -> Result<Figures> {
        let mut halves = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        let mut start = Instant::now();
        for _ in 0..count {
            self.send(endpoint, message)?;
            let answer = endpoint.recv_timeout(SILENCE)?;
            let now = Instant::now();
            let half = now.duration_since(start) / 2;
            halves.saturating_record(u64::try_from(half.as_nanos()).unwrap_or(u64::MAX));
            start = now;
            if answer.len() != message.len() {
                bail!("sent {} bytes, got {} back", message.len(), answer.len());
            }
        }
        Ok(Figures::Latency(halves))
    }

    fn stream(&self, endpoint: &Endpoint, message: &[u8], count: u64) -> Result<Figures> {
        let start = Instant::now();
        for _ in 0..count {
            self.send(endpoint, message)?;
        }
        endpoint.recv_timeout(SILENCE)?;
        Ok(Figures::Rate(count as f64 / start.elapsed().as_secs_f64()))
    }

    fn send(&self, endpoint: &Endpoint, message: &[u8]) -> Result<(), Error> {
        if self.manner.owned {
            // Filling it is the application's work, not the library's.
            endpoint.send_owned(endpoint.buffer(message.len())?)?;
            Ok(())
        } else {
            endpoint.send(message)
        }
    }

    /// How many messages go ahead of those that are measured.
    fn warm_up(&self) -> u64 {
        (self.count / 10).max(1)
    }

    /// The arguments that say the same on a command line.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--address={}", self.address),
            format!("--port={}", self.port),
            format!("--test={}", self.test.name()),
            format!("--size={}", self.size),
            format!("--count={}", self.count),
        ];
        arguments.extend(self.manner.arguments());
        arguments
    }
}

impl Test {
    /// As on a command line.
    fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
        }
    }
}

/// What a run found out. It prints as words that [`Program`](crate::program::Program) reads.
#[derive(Debug)]
pub(crate) enum Figures {
    /// Half round trips in nanoseconds.
    Latency(Histogram<u64>),
    /// Messages a second.
    Rate(f64),
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latency(halves) => {
                let micros = |nanos: u64| nanos as f64 / 1e3;
                write!(
                    f,
                    "mean={:.3} min={:.3}",
                    halves.mean() / 1e3,
                    micros(halves.min())
                )?;
                for (name, quantile) in
                    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)]
                {
                    write!(
                        f,
                        " {name}={:.3}",
                        micros(halves.value_at_quantile(quantile))
                    )?;
                }
                write!(f, " max={:.3}", micros(halves.max()))
            }
            Self::Rate(rate) => write!(f, "rate={rate:.3}"),
        }
    }
}
