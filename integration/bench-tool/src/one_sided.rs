//! RDMA READ and WRITE of the server's memory, in which its program takes no part.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use rdmsg::{Completion, Endpoint, Engine, Region, RemoteAccess, RemoteRegion};

use crate::{
    carrier::SILENCE,
    measure::Measure,
    traffic::{Figures, Times, Traffic},
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

pub(crate) fn measure(traffic: &Traffic) -> Result<Figures> {
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
    let figures = run(traffic.count)?;
    memory.endpoint.close()?;
    drop(memory);
    engine.shutdown();
    Ok(figures)
}

impl Memory {
    /// One after the other.
    fn read(&self, count: u64) -> Result<Figures> {
        let mut times = Times::start()?;
        for id in 0..count {
            let range = 0..self.size;
            self.endpoint
                .read(&self.local, range, &self.remote, 0, id)?;
            self.complete()?;
            times.record(1);
        }
        Ok(times.figures())
    }

    /// As many at a time as the configuration allows.
    fn write(&self, count: u64) -> Result<Figures> {
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
        Ok(Figures::Rate(count as f64 / start.elapsed().as_secs_f64()))
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
