//! RDMA READ and WRITE of the server's memory, in which its program takes no part.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use rdmsg::{Completion, Endpoint, Engine, Region, RemoteAccess, RemoteRegion};

use crate::{
    measure::Measure,
    traffic::{Reading, SILENCE, Times, Traffic},
};

/// Says where its memory is.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    let engine = Engine::new()?;
    let endpoints = traffic.accept(&engine)?;
    let endpoint = endpoints.first().context("no connection")?;
    let region = endpoint.region(traffic.size, RemoteAccess::ALL)?;
    endpoint.send(&region.remote().to_bytes())?;
    // Until the client has closed.
    drop(endpoint.recv_timeout(SILENCE));
    drop(endpoints);
    engine.shutdown();
    Ok(())
}

/// The two ends of the transfers.
struct Memory {
    endpoint: Endpoint,
    local: Region,
    remote: RemoteRegion,
    size: usize,
}

pub(crate) fn measure(traffic: &Traffic) -> Result<Reading> {
    let engine = Engine::new()?;
    let endpoint = traffic.connect(&engine)?.pop().context("no connection")?;
    let told = endpoint.recv_timeout(SILENCE)?;
    let memory = Memory {
        local: endpoint.region(traffic.size, RemoteAccess::NONE)?,
        remote: RemoteRegion::try_from(&*told)?,
        size: traffic.size,
        endpoint,
    };
    drop(told);
    let run = |count| match traffic.measure {
        Measure::Read => memory.read(count),
        _ => memory.write(count),
    };
    run(traffic.warm_up())?;
    let reading = run(traffic.count)?;
    memory.endpoint.close()?;
    drop(memory);
    engine.shutdown();
    Ok(reading)
}

impl Memory {
    /// One after the other.
    fn read(&self, count: u64) -> Result<Reading> {
        let mut times = Times::start(count);
        for id in 0..count {
            let range = 0..self.size;
            self.endpoint
                .read(&self.local, range, &self.remote, 0, id)?;
            self.complete()?;
            times.record(1);
        }
        Ok(times.reading())
    }

    /// As many at a time as the configuration allows.
    fn write(&self, count: u64) -> Result<Reading> {
        let start = Instant::now();
        let mut ended = 0;
        for id in 0..count {
            let range = 0..self.size;
            self.endpoint
                .write(&self.local, range, &self.remote, 0, id)?;
            while let Some(completion) = self.endpoint.try_next_completion()? {
                done(&completion)?;
                ended += 1;
            }
        }
        for _ in ended..count {
            self.complete()?;
        }
        Ok(Reading::rate(count, start))
    }

    fn complete(&self) -> Result<()> {
        done(&self.endpoint.next_completion_timeout(SILENCE)?)
    }
}

fn done(completion: &Completion) -> Result<()> {
    match completion {
        Completion::Read(_) | Completion::Written(_) => Ok(()),
        other => bail!("instead of the end of a transfer came {other:?}"),
    }
}
