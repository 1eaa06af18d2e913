//! A client and a server that exchange messages, or bytes of a stream.

use std::{
    io::{BufRead, IoSlice, Read, Write},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures_util::SinkExt;
use nix::time::{ClockId, clock_gettime};
use rdmsg::{Endpoint, SendBuffer, Stream, tokio as tasks};
use tokio::runtime::{Builder, Runtime};
use toolbox::Side;

use crate::{
    alternatives::{self, Codec, StdSocket},
    c_sockets::CSocket,
    manner::{Library, Way},
    measure::Measure,
    plain_verbs::PlainVerbs,
    sweep,
    traffic::{Reading, SILENCE, Times, Traffic},
};

/// The server's answer after it has received all messages of a run in one direction.
const ANSWER: &[u8] = b"!";

/// The interval between two messages of [`Measure::Sparse`].
const INTERVAL: Duration = Duration::from_millis(2);

/// Serves one client until the client has closed its connections.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    runtime()?.block_on(async {
        let mut carriers = Carrier::all(traffic, Side::Server).await?;
        let carrier = carriers.first_mut().context("no connection")?;
        for part in sweep::parts(traffic) {
            send_and_receive(&part, carrier, part.warm_up).await?;
            send_and_receive(&part, carrier, part.count).await?;
        }
        // Wait until the client has closed the connections.
        for mut carrier in carriers {
            drop(carrier.receive(1).await);
        }
        Ok(())
    })
}

/// Handles `count` messages of the client.
async fn send_and_receive(traffic: &Traffic, carrier: &mut Carrier, count: u64) -> Result<()> {
    let message = vec![0x5a; traffic.size];
    for _ in 0..count {
        match traffic.measure {
            Measure::OneWay => carrier.receive(traffic.size).await?,
            Measure::Sparse => {
                sleep(INTERVAL);
                carrier.send(&message).await?;
            }
            _ => carrier.send_back(traffic.size).await?,
        }
    }
    if traffic.measure == Measure::OneWay {
        carrier.send(ANSWER).await?;
    }
    Ok(())
}

/// Runs the client against a server. Returns a reading for each part of the traffic.
pub(crate) fn measure(traffic: &Traffic) -> Result<Vec<Reading>> {
    runtime()?.block_on(async {
        let mut carriers = Carrier::all(traffic, Side::Client).await?;
        let mut readings = Vec::new();
        for part in sweep::parts(traffic) {
            run(&part, &mut carriers, part.warm_up).await?;
            readings.push(run(&part, &mut carriers, part.count).await?);
        }
        for carrier in carriers {
            carrier.close().await?;
        }
        Ok(readings)
    })
}

/// Sends or receives `count` messages. Messages in one direction all use the first connection.
/// Round trips use all connections in rotation, or at once.
async fn run(traffic: &Traffic, carriers: &mut [Carrier], count: u64) -> Result<Reading> {
    let carrier = carriers.first_mut().context("no connection")?;
    let message = vec![0x5a; traffic.size];
    match traffic.measure {
        Measure::OneWay => {
            let start = Instant::now();
            let mut left = count;
            while left > 0 {
                let times = left.min(traffic.manner.batch.into());
                match times {
                    1 => carrier.send(&message).await?,
                    _ => carrier.send_batch(&message, times as usize).await?,
                }
                left -= times;
            }
            carrier.receive(ANSWER.len()).await?;
            Ok(Reading::rate(count, start))
        }
        Measure::Sparse => {
            let before = processor_time()?;
            for _ in 0..count {
                carrier.receive(traffic.size).await?;
            }
            let taken = processor_time()?.saturating_sub(before);
            Ok(Reading::mean(taken.as_secs_f64() * 1e6 / count as f64))
        }
        _ => {
            let at_once = match traffic.measure {
                Measure::AtOnce => carriers.len(),
                _ => 1,
            };
            let mut times = Times::start(count);
            let places = (0..carriers.len()).step_by(at_once).cycle();
            for place in places.take(usize::try_from(count)? / at_once) {
                let carriers = &mut carriers[place..place + at_once];
                for carrier in &mut *carriers {
                    carrier.send(&message).await?;
                }
                for carrier in carriers {
                    carrier.receive(message.len()).await?;
                }
                times.record(2 * at_once);
            }
            Ok(times.reading())
        }
    }
}

pub(crate) fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_io().build()?)
}

/// Returns the processor time that this process has used so far.
fn processor_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// One end of a connection. The futures of `Tasks` and `Codec` can be pending. The futures of the
/// other variants block the thread and are never pending.
pub(crate) enum Carrier {
    Messages { endpoint: Endpoint, owned: bool },
    Tasks(tasks::Endpoint),
    Bytes(Stream),
    Std(Box<StdSocket>),
    Codec(Box<Codec>),
    C(CSocket),
    Verbs(Box<PlainVerbs>),
}

impl Carrier {
    /// Opens the connections, and returns this side's end of each connection.
    pub(crate) async fn all(traffic: &Traffic, side: Side) -> Result<Vec<Self>> {
        if traffic.manner.library != Library::Rdmsg {
            return alternatives::connections(traffic, side).await;
        }
        let endpoints = traffic.endpoints(side)?.into_iter();
        endpoints.map(|one| Self::of(one, traffic)).collect()
    }

    /// Wraps an endpoint in the type that the traffic uses. The peer wraps its end in the same way.
    fn of(endpoint: Endpoint, traffic: &Traffic) -> Result<Self> {
        let manner = traffic.manner;
        if manner.has(Way::Tasks) {
            return Ok(Self::Tasks(tasks::Endpoint::new(endpoint)?));
        }
        if manner.has(Way::Stream) {
            let stream = Stream::from(endpoint);
            stream.set_read_timeout(Some(SILENCE))?;
            return Ok(Self::Bytes(stream));
        }
        let owned = manner.has(Way::Owned);
        Ok(Self::Messages { endpoint, owned })
    }

    pub(crate) async fn send(&mut self, message: &[u8]) -> Result<()> {
        match self {
            // Leave the buffer unfilled, because filling it would be the application's work, not
            // the library's.
            Self::Messages { endpoint, owned } if *owned => {
                endpoint.send(SendBuffer::new(endpoint, message.len())?)?;
            }
            Self::Messages { endpoint, .. } => endpoint.send(message)?,
            Self::Tasks(endpoint) => endpoint.send(message).await?,
            Self::Bytes(stream) => stream.write_all(message)?,
            Self::Std(socket) => socket.send(message, 1)?,
            Self::Codec(codec) => codec.send(message, 1).await?,
            Self::C(socket) => socket.send(message)?,
            Self::Verbs(verbs) => verbs.send(message)?,
        }
        Ok(())
    }

    /// Sends the same message `times` times, in one call.
    async fn send_batch(&mut self, message: &[u8], times: usize) -> Result<()> {
        let endpoint = match self {
            Self::Messages { endpoint, .. } => endpoint,
            Self::Std(socket) => return socket.send(message, times),
            Self::Codec(codec) => return codec.send(message, times).await,
            _ => bail!("this program sends no batches of messages"),
        };
        let sent = endpoint.send_batch(&vec![IoSlice::new(message); times])?;
        ensure!(sent == times, "{sent} of {times} messages were sent");
        Ok(())
    }

    /// Receives a message of `len` bytes, or `len` bytes of a stream.
    pub(crate) async fn receive(&mut self, len: usize) -> Result<()> {
        let came = match self {
            Self::Messages { endpoint, .. } => endpoint.recv_timeout(SILENCE)?.len(),
            Self::Tasks(endpoint) => endpoint.recv().await?.len(),
            Self::Bytes(stream) => {
                let mut missing = len;
                while missing > 0 {
                    let here = stream.fill_buf()?.len().min(missing);
                    ensure!(here > 0, "the stream has ended");
                    stream.consume(here);
                    missing -= here;
                }
                len
            }
            Self::Std(socket) => socket.receive()?,
            Self::Codec(codec) => codec.receive().await?.len(),
            Self::C(socket) => socket.receive()?,
            Self::Verbs(verbs) => verbs.receive()?,
        };
        ensure!(came == len, "expected {len} bytes, received {came}");
        Ok(())
    }

    /// Receives a message of `len` bytes and sends it back.
    pub(crate) async fn send_back(&mut self, len: usize) -> Result<()> {
        fn bytes(stream: &mut (impl Read + Write), len: usize) -> Result<()> {
            let mut bytes = vec![0; len];
            stream.read_exact(&mut bytes)?;
            Ok(stream.write_all(&bytes)?)
        }
        match self {
            Self::Messages { endpoint, .. } => {
                let message = endpoint.recv_timeout(SILENCE)?;
                endpoint.send(&message)?;
            }
            Self::Tasks(endpoint) => {
                let message = endpoint.recv().await?;
                endpoint.send(&message).await?;
            }
            Self::Bytes(stream) => bytes(stream, len)?,
            Self::Std(socket) => socket.send_back()?,
            Self::Codec(codec) => {
                let message = codec.receive().await?;
                codec.frames.send(message).await?;
            }
            Self::C(socket) => socket.send_back()?,
            Self::Verbs(verbs) => verbs.send_back()?,
        }
        Ok(())
    }

    pub(crate) async fn close(mut self) -> Result<()> {
        match self {
            // These libraries do not report that the peer has closed a connection. So the server
            // waits for this final message.
            Self::C(_) | Self::Verbs(_) => self.send(b"!").await?,
            Self::Messages { endpoint, .. } => endpoint.close()?,
            Self::Tasks(endpoint) => endpoint.close().await?,
            Self::Bytes(_) | Self::Std(_) | Self::Codec(_) => {}
        }
        Ok(())
    }
}
