//! Measures the memory, the descriptors and the processor time of idle connections. Each connection
//! carries one message in each direction before it is idle.

use std::{
    net::SocketAddr,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::sys::prctl::set_thp_disable;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use toolbox::{Side, open_fds, status_kib};

use crate::{
    kernel::work,
    many,
    measure::Measure,
    messages::{Carrier, runtime},
    traffic::{Reading, Traffic},
};

/// The time for which the connections are idle while their processor time is measured. It spans
/// several keepalive intervals.
const INTERVAL: Duration = Duration::from_secs(10);

/// The difference between the server's port and a second port. Over a separate TCP connection to
/// the second port, the client asks for the usage of the server.
const ASIDE: u16 = 10_000;

/// Returns the anonymous memory of this process in KiB, or its number of descriptors. The processor
/// time is not that of a process, so it is 0.
fn usage(measure: Measure) -> Result<f64> {
    Ok(match measure {
        Measure::IdleDescriptors => open_fds() as f64,
        Measure::IdleWork => 0.0,
        _ => status_kib("self", "RssAnon")? as f64,
    })
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
        let mut echoes = JoinSet::new();
        if many::serves(traffic) {
            // The tasks echo the messages and are idle afterwards.
            echoes = many::echoes(std::mem::take(&mut carriers))?;
        }
        for carrier in &mut carriers {
            carrier.send_back(traffic.size).await?;
        }
        asked.read_u8().await?;
        asked.write_f64(usage(traffic.measure)?).await?;
        // Wait until the client has closed the connections.
        for mut carrier in carriers {
            drop(carrier.receive(1).await);
        }
        echoes.join_all().await;
        Ok(())
    })
}

/// Opens the connections, and sends and receives a message on each. Returns the total usage of the
/// client and the server, or the share of the processor in percent that the whole host uses.
pub(crate) fn measure(traffic: &Traffic) -> Result<Reading> {
    set_huge_pages(traffic.measure)?;
    runtime()?.block_on(async {
        let mut carriers = Carrier::all(traffic, Side::Client).await?;
        let mut asked = TcpStream::connect(aside(traffic)).await?;
        let message = vec![0x5a; traffic.size];
        for carrier in &mut carriers {
            carrier.send(&message).await?;
            carrier.receive(message.len()).await?;
        }
        let mut total = usage(traffic.measure)?;
        if traffic.measure == Measure::IdleWork {
            let (before, start) = (work()?, Instant::now());
            sleep(INTERVAL);
            let used = work()?.saturating_sub(before);
            total = 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
        }
        asked.write_u8(0).await?;
        let of_server = asked.read_f64().await;
        total += of_server.context("the server sent no usage")?;
        for carrier in carriers {
            carrier.close().await?;
        }
        Ok(Reading::mean(total))
    })
}
