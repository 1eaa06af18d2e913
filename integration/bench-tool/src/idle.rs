//! Measures the memory, the descriptors and the processor time of idle connections. Each connection
//! carries one message in each direction before it is idle.

use std::{
    net::SocketAddr,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::sys::prctl::set_thp_disable;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use toolbox::{Side, open_fds, status_kib};

use crate::{
    conduct::work,
    many,
    measure::Measure,
    messages::{Carrier, runtime},
    traffic::Traffic,
};

/// The time for which the connections are idle while their processor time is measured. It spans
/// several keepalive intervals.
const INTERVAL: Duration = Duration::from_secs(10);

/// The difference between the server's port and a second port. Over a separate TCP connection to
/// the second port, the client asks for the usage of the server.
const ASIDE: u16 = 10_000;

/// The resources that one or several processes use while all connections are idle.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Usage {
    /// The anonymous memory, in KiB.
    memory: f64,
    descriptors: f64,
    /// The share of the processor that the whole host uses, in percent.
    share: f64,
}

impl Usage {
    fn of_this_process() -> Result<Self> {
        Ok(Self {
            memory: status_kib("self", "RssAnon")? as f64,
            descriptors: open_fds() as f64,
            share: 0.0,
        })
    }

    /// Returns the figure for `measure`, which must be a measure of idle connections.
    pub(crate) fn figure(self, measure: Measure) -> f64 {
        match measure {
            Measure::IdleMemory | Measure::IdleHuge => self.memory,
            Measure::IdleDescriptors => self.descriptors,
            _ => self.share,
        }
    }
}

/// Disables huge pages for this process, except for the measure with huge pages. With huge pages, a
/// touched byte can count as 2 MiB, so the figure would depend on the kernel's settings.
fn set_huge_pages(measure: Measure) -> Result<()> {
    Ok(set_thp_disable(measure != Measure::IdleHuge)?)
}

fn aside(traffic: &Traffic) -> SocketAddr {
    let mut address = traffic.server;
    address.set_port(address.port() + ASIDE);
    address
}

/// Accepts the connections, and sends this process's usage when the client asks for it.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    set_huge_pages(traffic.measure)?;
    runtime()?.block_on(async {
        let asked = TcpListener::bind(aside(traffic)).await?;
        let mut carriers = Carrier::all(traffic, Side::Server).await?;
        let (mut asked, _) = asked.accept().await?;
        // If the program has tasks, the tasks echo the messages and are idle afterwards.
        let echoes = match many::serves(traffic) {
            true => Some(many::echoes(std::mem::take(&mut carriers))?),
            false => None,
        };
        for carrier in &mut carriers {
            carrier.send_back(traffic.size).await?;
        }
        asked.read_u8().await?;
        let usage = serde_json::to_vec(&Usage::of_this_process()?)?;
        asked.write_all(&usage).await?;
        asked.shutdown().await?;
        // Wait until the client has closed the connections.
        for mut carrier in carriers {
            drop(carrier.receive(1).await);
        }
        if let Some(echoes) = echoes {
            echoes.join_all().await;
        }
        Ok(())
    })
}

/// Opens the connections, sends and receives a message on each, and returns the total usage of the
/// client and the server.
pub(crate) fn measure(traffic: &Traffic) -> Result<Usage> {
    set_huge_pages(traffic.measure)?;
    runtime()?.block_on(async {
        let mut carriers = Carrier::all(traffic, Side::Client).await?;
        let mut asked = TcpStream::connect(aside(traffic)).await?;
        let message = vec![0x5a; traffic.size];
        for carrier in &mut carriers {
            carrier.send(&message).await?;
            carrier.receive(message.len()).await?;
        }
        let mut usage = Usage::of_this_process()?;
        if traffic.measure == Measure::IdleWork {
            let (before, start) = (work()?, Instant::now());
            sleep(INTERVAL);
            let used = work()?.saturating_sub(before);
            usage.share = 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
        }
        asked.write_u8(0).await?;
        let mut answer = Vec::new();
        asked.read_to_end(&mut answer).await?;
        let server: Usage = serde_json::from_slice(&answer).context("the server sent no usage")?;
        usage.memory += server.memory;
        usage.descriptors += server.descriptors;
        for carrier in carriers {
            carrier.close().await?;
        }
        Ok(usage)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_has_a_figure_for_each_measure() {
        let usage = Usage {
            memory: 300.0,
            descriptors: 40.0,
            share: 0.75,
        };
        assert_eq!(usage.figure(Measure::IdleMemory), 300.0);
        assert_eq!(usage.figure(Measure::IdleDescriptors), 40.0);
        assert_eq!(usage.figure(Measure::IdleWork), 0.75);
        assert!(Usage::of_this_process().unwrap().memory > 0.0);
    }
}
