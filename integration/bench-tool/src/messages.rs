//! Messages, or bytes, between one client and one server.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use rdmsg::Engine;
use tokio::runtime::{Builder, Runtime};

use crate::{
    carrier::Carrier,
    measure::Measure,
    traffic::{Reading, Times, Traffic},
};

/// What the server says when it has all messages.
const ANSWER: &[u8] = b"!";

/// The time between two sparse messages.
const INTERVAL: Duration = Duration::from_millis(2);

/// Serves one client.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    runtime()?.block_on(async {
        let engine = Engine::new()?;
        let accepted = Carrier::accept(traffic, &engine)?.pop();
        let mut carrier = accepted.context("no connection")?;
        let message = vec![0x5a; traffic.size];
        for count in [traffic.warm_up(), traffic.count] {
            for _ in 0..count {
                match traffic.measure {
                    Measure::OneWay | Measure::Pressed => carrier.receive(traffic.size).await?,
                    Measure::Sparse => {
                        sleep(INTERVAL);
                        carrier.send(&message).await?;
                    }
                    _ => carrier.send_back(traffic.size).await?,
                }
            }
            if traffic.measure.is_one_way() {
                carrier.send(ANSWER).await?;
            }
        }
        // The client ends the connection when it has what it wants.
        carrier.await_end().await;
        drop(carrier);
        engine.shutdown();
        Ok(())
    })
}

/// Measures against a server.
pub(crate) fn measure(traffic: &Traffic) -> Result<Reading> {
    runtime()?.block_on(async {
        let engine = Engine::new()?;
        let mut carriers = Carrier::connect(traffic, &engine)?;
        run(traffic, &mut carriers, traffic.warm_up()).await?;
        let reading = run(traffic, &mut carriers, traffic.count).await?;
        for carrier in carriers {
            carrier.close().await?;
        }
        engine.shutdown();
        Ok(reading)
    })
}

/// What goes one way takes the first connection, and round trips take each in turn.
async fn run(traffic: &Traffic, carriers: &mut [Carrier], count: u64) -> Result<Reading> {
    let carrier = carriers.first_mut().context("no connection")?;
    let message = vec![0x5a; traffic.size];
    match traffic.measure {
        Measure::OneWay | Measure::Pressed => {
            let start = Instant::now();
            let mut left = count;
            while left > 0 {
                let times = left.min(traffic.manner.batch.into());
                match times {
                    1 => carrier.send(&message).await?,
                    _ => carrier.send_batch(&message, usize::try_from(times)?)?,
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
            let mut times = Times::start(count);
            let places = (0..carriers.len()).cycle();
            for (place, _) in places.zip(0..count) {
                carriers[place].send(&message).await?;
                carriers[place].receive(message.len()).await?;
                times.record(2);
            }
            Ok(times.reading())
        }
    }
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_io().build()?)
}

/// Returns the processor time of this process.
fn processor_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}
