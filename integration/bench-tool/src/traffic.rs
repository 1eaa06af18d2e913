use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use anyhow::Result;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use rdmsg::Engine;
use tokio::runtime::{Builder, Runtime};

use crate::{carrier::Carrier, manner::Manner};

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

/// What the server says when it has all messages.
const ANSWER: &[u8] = b"!";

impl Traffic {
    /// Serves one client.
    pub(crate) fn serve(&self) -> Result<()> {
        runtime()?.block_on(self.serve_in_task())
    }

    async fn serve_in_task(&self) -> Result<()> {
        let engine = Engine::new()?;
        let address = SocketAddr::new(self.address, self.port);
        let mut carrier = Carrier::accept(address, &self.manner, &engine)?;
        match self.test {
            Test::Latency => {
                for _ in 0..self.warm_up() + self.count {
                    carrier.send_back(self.size).await?;
                }
            }
            Test::Bandwidth => {
                for count in [self.warm_up(), self.count] {
                    for _ in 0..count {
                        carrier.receive(self.size).await?;
                    }
                    carrier.send(ANSWER).await?;
                }
            }
        }
        // The client ends the connection when it has what it wants.
        carrier.await_end().await;
        drop(carrier);
        engine.shutdown();
        Ok(())
    }

    /// Measures against a server.
    pub(crate) fn measure(&self) -> Result<Figures> {
        runtime()?.block_on(self.measure_in_task())
    }

    async fn measure_in_task(&self) -> Result<Figures> {
        let engine = Engine::new()?;
        let address = SocketAddr::new(self.address, self.port);
        let mut carrier = Carrier::connect(address, &self.manner, &engine)?;
        let message = vec![0x5a; self.size];
        let figures = match self.test {
            Test::Latency => {
                self.round_trips(&mut carrier, &message, self.warm_up())
                    .await?;
                self.round_trips(&mut carrier, &message, self.count).await?
            }
            Test::Bandwidth => {
                self.stream(&mut carrier, &message, self.warm_up()).await?;
                self.stream(&mut carrier, &message, self.count).await?
            }
        };
        carrier.close().await?;
        engine.shutdown();
        Ok(figures)
    }

    async fn round_trips(
        &self,
        carrier: &mut Carrier,
        message: &[u8],
        count: u64,
    ) -> Result<Figures> {
        let mut halves = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        let mut start = Instant::now();
        for _ in 0..count {
            carrier.send(message).await?;
            carrier.receive(message.len()).await?;
            let now = Instant::now();
            let half = now.duration_since(start) / 2;
            halves.saturating_record(u64::try_from(half.as_nanos()).unwrap_or(u64::MAX));
            start = now;
        }
        Ok(Figures::Latency(halves))
    }

    async fn stream(&self, carrier: &mut Carrier, message: &[u8], count: u64) -> Result<Figures> {
        let start = Instant::now();
        for _ in 0..count {
            carrier.send(message).await?;
        }
        carrier.receive(ANSWER.len()).await?;
        Ok(Figures::Rate(count as f64 / start.elapsed().as_secs_f64()))
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

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_io().build()?)
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
