//! RDMA READs and WRITEs, which access the server's memory without using the server's processor.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use rdmsg::{Completion, Endpoint, Region, RemoteAccess, RemoteRegion};
use toolbox::Side;

use crate::{
    measure::Measure,
    traffic::{Reading, SILENCE, Times, Traffic},
};

/// Sends the description of a memory region to the client, and waits until the client has closed
/// the connection.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    let endpoints = traffic.endpoints(Side::Server)?;
    let endpoint = endpoints.first().context("no connection")?;
    let region = endpoint
        .one_sided()
        .region(traffic.size, RemoteAccess::ALL)?;
    endpoint.send(&region.remote().to_bytes())?;
    // Wait until the client has closed the connection.
    drop(endpoint.recv_timeout(SILENCE));
    Ok(())
}

pub(crate) fn measure(traffic: &Traffic) -> Result<Reading> {
    let endpoints = traffic.endpoints(Side::Client)?;
    let endpoint = endpoints.first().context("no connection")?;
    let remote = RemoteRegion::try_from(&*endpoint.recv_timeout(SILENCE)?)?;
    let local = endpoint
        .one_sided()
        .region(traffic.size, RemoteAccess::NONE)?;
    let run = |count| match traffic.measure {
        Measure::Read => read(endpoint, &local, &remote, count),
        _ => write(endpoint, &local, &remote, count),
    };
    run(traffic.warm_up)?;
    let reading = run(traffic.count)?;
    endpoint.close()?;
    Ok(reading)
}

/// Runs `count` READs, one at a time.
fn read(from: &Endpoint, local: &Region, remote: &RemoteRegion, count: u64) -> Result<Reading> {
    let mut times = Times::start(count);
    for id in 0..count {
        from.one_sided()
            .read(local, 0..local.len(), remote, 0, id)?;
        done(&from.next_completion_timeout(SILENCE)?)?;
        times.record(1);
    }
    Ok(times.reading())
}

/// Runs `count` WRITEs. The depth of the send queue limits the number of WRITEs in flight.
fn write(to: &Endpoint, local: &Region, remote: &RemoteRegion, count: u64) -> Result<Reading> {
    let start = Instant::now();
    let mut ended = 0;
    for id in 0..count {
        to.one_sided().write(local, 0..local.len(), remote, 0, id)?;
        while let Some(completion) = to.try_next_completion()? {
            done(&completion)?;
            ended += 1;
        }
    }
    for _ in ended..count {
        done(&to.next_completion_timeout(SILENCE)?)?;
    }
    Ok(Reading::rate(count, start))
}

fn done(completion: &Completion) -> Result<()> {
    match completion {
        Completion::Read(_) | Completion::Written(_) => Ok(()),
        other => bail!("expected the completion of a transfer, got {other:?}"),
    }
}
