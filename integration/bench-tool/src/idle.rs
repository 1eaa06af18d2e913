use std::{
    fmt, fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use rdmsg::{Connector, Engine, Listener};

use crate::manner::Manner;

/// Connections that are opened, carry nothing, and are closed.
#[derive(Args, Clone, Debug)]
pub(crate) struct Idle {
    /// The server's address
    #[arg(long)]
    pub(crate) address: IpAddr,
    #[arg(long)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) manner: Manner,
}

/// How long the peer may take to connect, or to close.
const PATIENCE: Duration = Duration::from_secs(60);

impl Idle {
    /// Accepts the connections, one more than are counted, and keeps them until they are closed.
    pub(crate) fn serve(&self) -> Result<()> {
        let engine = Engine::new()?;
        let address = SocketAddr::new(self.address, self.port);
        let listener = Listener::bind_with(address, &self.manner.config(), &engine)?;
        let endpoints = (0..=self.manner.connections)
            .map(|_| listener.accept_timeout(PATIENCE))
            .collect::<Result<Vec<_>, _>>()?;
        for endpoint in endpoints {
            let _ = endpoint.recv_timeout(PATIENCE);
        }
        engine.shutdown();
        Ok(())
    }

    /// Opens the connections and sees what memory is gone. A first one pays for what all share.
    pub(crate) fn measure(&self) -> Result<Cost> {
        let engine = Engine::new()?;
        let config = self.manner.config();
        let connector = Connector::new().config(config).engine(&engine);
        let address = SocketAddr::new(self.address, self.port);
        let first = connector.connect(address)?;
        let before = Memory::now()?;
        let endpoints = (0..self.manner.connections)
            .map(|_| connector.connect(address))
            .collect::<Result<Vec<_>, _>>()?;
        let after = Memory::now()?;
        for endpoint in endpoints {
            endpoint.close()?;
        }
        first.close()?;
        drop(first);
        engine.shutdown();
        let connections = self.manner.connections;
        let each = |less: u64, more: u64| more.saturating_sub(less) as f64 / f64::from(connections);
        Ok(Cost {
            resident: each(before.resident, after.resident),
            pinned: each(before.pinned, after.pinned),
            host: each(after.available, before.available),
        })
    }

    /// The arguments that say the same on a command line.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--address={}", self.address),
            format!("--port={}", self.port),
        ];
        arguments.extend(self.manner.arguments());
        arguments
    }
}

/// Memory at one moment, in KiB.
struct Memory {
    /// Of this process, in memory.
    resident: u64,
    /// Of that, held there by the process or for the device.
    pinned: u64,
    /// Of the host, free or easily made so.
    available: u64,
}

impl Memory {
    fn now() -> Result<Self> {
        let process = fs::read_to_string("/proc/self/status")?;
        let host = fs::read_to_string("/proc/meminfo")?;
        Ok(Self {
            resident: field(&process, "VmRSS")?,
            pinned: field(&process, "VmLck")? + field(&process, "VmPin")?,
            available: field(&host, "MemAvailable")?,
        })
    }
}

/// The number in a line such as `VmRSS:      1234 kB`.
fn field(text: &str, name: &str) -> Result<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|value| value.trim().strip_suffix("kB")?.trim().parse().ok())
        .with_context(|| format!("the kernel does not tell {name}"))
}

/// What a connection costs, in KiB.
#[derive(Debug)]
pub(crate) struct Cost {
    resident: f64,
    pinned: f64,
    /// With what the kernel and its driver need for it.
    host: f64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resident,
            pinned,
            host,
        } = self;
        write!(
            f,
            "resident={resident:.1} pinned={pinned:.1} host={host:.1}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_kernel_are_kilobytes() {
        let text = "VmPin:\t      12 kB\nVmRSS:\t    3000 kB\n";
        assert_eq!(field(text, "VmRSS").unwrap(), 3000);
        assert!(field(text, "VmLck").is_err());
    }
}
