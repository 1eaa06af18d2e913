//! Idle connections: their memory, their descriptors, and the processor time that they use. Each
//! connection has carried one message in each direction before.

use std::{
    fs,
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
use toolbox::{Side, open_fds};

use crate::{
    conduct::work,
    many,
    measure::Measure,
    messages::{Carrier, runtime},
    traffic::Traffic,
};

/// The time for which the connections are idle when their processor time is measured. It spans
/// several keepalive intervals.
const INTERVAL: Duration = Duration::from_secs(10);

/// The difference between the measured port and the port of a separate TCP connection, over which
/// the client asks for the usage of the server.
const ASIDE: u16 = 10_000;

/// The usage of one or several processes while all connections are idle.
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
        let status = fs::read_to_string("/proc/self/status")?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(Self {
            memory: number.context("no RssAnon")?.parse()?,
            descriptors: open_fds() as f64,
            share: 0.0,
        })
    }

    /// Returns the figure of a measure. `self` is the usage with one connection, and `more` is the
    /// usage with `count` additional connections. A share is the total for both ends of the
    /// additional connections. Any other figure is for one end of one connection.
    pub(crate) fn figure(self, more: Self, measure: Measure, count: f64) -> f64 {
        match measure {
            Measure::IdleMemory | Measure::IdleHuge => (more.memory - self.memory) / (2.0 * count),
            Measure::IdleDescriptors => (more.descriptors - self.descriptors) / (2.0 * count),
            _ => (more.share - self.share).max(0.0),
        }
    }
}

/// Disables huge pages for this process unless the measure includes them. With huge pages, a
/// touched byte can count 2 MiB, so the figure would depend on the kernel's settings.
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

/// Returns the usage of both processes.
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
        let server: Usage = serde_json::from_slice(&answer).context("the server's usage")?;
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
    fn figure_is_that_of_the_added_connections() {
        let usage = |memory, descriptors, share| Usage {
            memory,
            descriptors,
            share,
        };
        let (one, more) = (usage(100.0, 20.0, 0.5), usage(300.0, 40.0, 0.75));
        let figure = |measure| one.figure(more, measure, 10.0);
        assert_eq!(figure(Measure::IdleMemory), 10.0);
        assert_eq!(figure(Measure::IdleDescriptors), 1.0);
        assert_eq!(figure(Measure::IdleWork), 0.25);
        assert!(Usage::of_this_process().unwrap().memory > 0.0);
    }
}
