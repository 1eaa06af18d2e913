use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use rdmsg::{Connector, Endpoint, Engine, Listener};
use tokio::runtime::{Builder, Runtime};

use crate::{
    carrier::{Carrier, SILENCE},
    manner::Manner,
    many,
    measure::Measure,
    one_sided, ring,
};

/// What an rdmsg server and client send each other to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Traffic {
    /// The server's address
    #[arg(long)]
    pub(crate) address: IpAddr,
    #[arg(long)]
    pub(crate) port: u16,
    #[arg(long, value_enum)]
    pub(crate) measure: Measure,
    /// Bytes of a message
    #[arg(long)]
    pub(crate) size: usize,
    /// How many messages are measured
    #[arg(long)]
    pub(crate) count: u64,
    #[command(flatten)]
    pub(crate) manner: Manner,
}

/// What the server says when it has all messages.
const ANSWER: &[u8] = b"!";

/// The time between two sparse messages.
const INTERVAL: Duration = Duration::from_millis(2);

impl Traffic {
    /// Serves one client.
    pub(crate) fn serve(&self) -> Result<()> {
        match self.measure {
            Measure::Read | Measure::Write => one_sided::serve(self),
            Measure::Ring => ring::serve(self),
            Measure::HalfRoundTrip if self.manner.epoll => many::serve(self),
            _ => runtime()?.block_on(self.serve_in_task()),
        }
    }

    async fn serve_in_task(&self) -> Result<()> {
        let engine = Engine::new()?;
        let address = SocketAddr::new(self.address, self.port);
        let mut carrier = Carrier::accept(address, &self.manner, &engine)?;
        if self.measure.is_one_way() {
            for count in [self.warm_up(), self.count] {
                for _ in 0..count {
                    carrier.receive(self.size).await?;
                }
                carrier.send(ANSWER).await?;
            }
        } else if self.measure == Measure::Sparse {
            let message = vec![0x5a; self.size];
            for _ in 0..self.warm_up() + self.count {
                sleep(INTERVAL);
                carrier.send(&message).await?;
            }
        } else {
            for _ in 0..self.warm_up() + self.count {
                carrier.send_back(self.size).await?;
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
        match self.measure {
            Measure::Read | Measure::Write => one_sided::measure(self),
            Measure::Ring => ring::measure(self),
            Measure::HalfRoundTrip if self.manner.connections > 1 => many::measure(self),
            Measure::HalfRoundTrip | Measure::OneWay | Measure::Pressed | Measure::Sparse => {
                runtime()?.block_on(self.measure_in_task())
            }
            other => bail!("{other} is not measured by traffic"),
        }
    }

    async fn measure_in_task(&self) -> Result<Figures> {
        let engine = Engine::new()?;
        let address = SocketAddr::new(self.address, self.port);
        let mut carrier = Carrier::connect(address, &self.manner, &engine)?;
        let message = vec![0x5a; self.size];
        let figures = if self.measure.is_one_way() {
            self.stream(&mut carrier, &message, self.warm_up()).await?;
            self.stream(&mut carrier, &message, self.count).await?
        } else if self.measure == Measure::Sparse {
            self.receive_sparse(&mut carrier, self.warm_up()).await?;
            self.receive_sparse(&mut carrier, self.count).await?
        } else {
            self.round_trips(&mut carrier, &message, self.warm_up())
                .await?;
            self.round_trips(&mut carrier, &message, self.count).await?
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
        let mut times = Times::start()?;
        for _ in 0..count {
            carrier.send(message).await?;
            carrier.receive(message.len()).await?;
            times.record(2);
        }
        Ok(times.figures())
    }

    async fn receive_sparse(&self, carrier: &mut Carrier, count: u64) -> Result<Figures> {
        let before = processor_time()?;
        for _ in 0..count {
            carrier.receive(self.size).await?;
        }
        let taken = processor_time()?.saturating_sub(before);
        Ok(Figures::Mean(taken.as_secs_f64() * 1e6 / count as f64))
    }

    async fn stream(&self, carrier: &mut Carrier, message: &[u8], count: u64) -> Result<Figures> {
        let start = Instant::now();
        let mut left = count;
        while left > 0 {
            let times = left.min(self.manner.batch.into());
            match times {
                1 => carrier.send(message).await?,
                _ => carrier.send_times(message, usize::try_from(times)?).await?,
            }
            left -= times;
        }
        carrier.receive(ANSWER.len()).await?;
        Ok(Figures::Rate(count as f64 / start.elapsed().as_secs_f64()))
    }

    /// How many messages go ahead of those that are measured.
    pub(crate) fn warm_up(&self) -> u64 {
        (self.count / 10).max(1)
    }

    /// Takes all of a client's connections.
    pub(crate) fn accept(&self, engine: &Engine) -> Result<Vec<Endpoint>> {
        let address = SocketAddr::new(self.address, self.port);
        let builder = Listener::builder().config(self.manner.config());
        let listener = builder.engine(engine).bind(address)?;
        let accepted = (0..self.manner.connections).map(|_| listener.accept_timeout(SILENCE));
        Ok(accepted.collect::<Result<_, _>>()?)
    }

    pub(crate) fn connect(&self, engine: &Engine) -> Result<Vec<Endpoint>> {
        let address = SocketAddr::new(self.address, self.port);
        let connector = Connector::new().config(self.manner.config()).engine(engine);
        let connected = (0..self.manner.connections).map(|_| connector.connect(address));
        Ok(connected.collect::<Result<_, _>>()?)
    }

    /// The arguments that say the same on a command line.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--address={}", self.address),
            format!("--port={}", self.port),
            self.measure.argument(),
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

/// Returns the processor time of this process.
fn processor_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Measures how long each of many things takes.
pub(crate) struct Times {
    nanos: Histogram<u64>,
    start: Instant,
}

impl Times {
    /// The first one begins now.
    pub(crate) fn start() -> Result<Self> {
        Ok(Self {
            nanos: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
            start: Instant::now(),
        })
    }

    /// One has ended, which counts as so many alike, and the next one begins.
    pub(crate) fn record(&mut self, alike: u32) {
        let now = Instant::now();
        let each = now.duration_since(self.start) / alike;
        let nanos = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.saturating_record(nanos);
        self.start = now;
    }

    pub(crate) fn figures(self) -> Figures {
        Figures::Times(self.nanos)
    }
}

/// What a run found out. It prints as words that [`reading::ours`](crate::reading::ours) reads.
#[derive(Debug)]
pub(crate) enum Figures {
    /// In nanoseconds.
    Times(Histogram<u64>),
    /// In microseconds.
    Mean(f64),
    /// Messages a second.
    Rate(f64),
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(times) => {
                let micros = |nanos: u64| nanos as f64 / 1e3;
                write!(
                    f,
                    "mean={:.3} min={:.3}",
                    times.mean() / 1e3,
                    micros(times.min())
                )?;
                for (name, quantile) in
                    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)]
                {
                    write!(
                        f,
                        " {name}={:.3}",
                        micros(times.value_at_quantile(quantile))
                    )?;
                }
                write!(f, " max={:.3}", micros(times.max()))
            }
            Self::Mean(mean) => write!(f, "mean={mean:.3}"),
            Self::Rate(rate) => write!(f, "rate={rate:.3}"),
        }
    }
}
