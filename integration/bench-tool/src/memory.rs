use std::{
    fmt, fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use rdmsg::{Config, Connector, Engine, Listener};

/// Connections that are opened and carry nothing.
#[derive(Args, Clone, Debug)]
pub(crate) struct Idle {
    /// The server's address
    #[arg(long)]
    pub(crate) address: IpAddr,
    #[arg(long)]
    pub(crate) port: u16,
    #[arg(long)]
    pub(crate) connections: u32,
    /// With a small configuration instead of the default one
    #[arg(long)]
    pub(crate) small: bool,
}

/// How long the peer may take to connect, or to close.
const PATIENCE: Duration = Duration::from_secs(60);

impl Idle {
    /// Accepts the connections, one more than are counted, and keeps them until they are closed.
    pub(crate) fn serve(&self) -> Result<()> {
        let engine = Engine::new()?;
        let address = SocketAddr::new(self.address, self.port);
        let listener = Listener::bind_with(address, &self.config(), &engine)?;
        let endpoints = (0..=self.connections)
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
        let connector = Connector::new().config(self.config()).engine(&engine);
        let address = SocketAddr::new(self.address, self.port);
        let first = connector.connect(address)?;
        let before = Memory::now()?;
        let endpoints = (0..self.connections)
            .map(|_| connector.connect(address))
            .collect::<Result<Vec<_>, _>>()?;
        let after = Memory::now()?;
        for endpoint in endpoints {
            endpoint.close()?;
        }
        first.close()?;
        drop(first);
        engine.shutdown();
        let each =
            |before: u64, after: u64| after.saturating_sub(before) / u64::from(self.connections);
        Ok(Cost {
            resident: each(before.resident, after.resident),
            pinned: each(before.pinned, after.pinned),
            host: each(after.available, before.available),
        })
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        if self.small {
            config.receive_window = 8;
            config.send_depth = 8;
            config.eager_size = Some(1024);
        }
        config
    }

    /// What [`Idle::config`] is.
    pub(crate) fn describe(&self) -> String {
        let config = self.config();
        format!(
            "{}: receive_window {}, send_depth {}, eager_size {:?}",
            if self.small {
                "small Config"
            } else {
                "default Config"
            },
            config.receive_window,
            config.send_depth,
            config.eager_size
        )
    }

    /// The arguments that say the same on a command line.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--address={}", self.address),
            format!("--port={}", self.port),
            format!("--connections={}", self.connections),
        ];
        arguments.extend(self.small.then(|| "--small".to_owned()));
        arguments
    }
}

/// Memory at one moment, in bytes.
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

/// A line such as `VmRSS:      1234 kB`, in bytes.
fn field(text: &str, name: &str) -> Result<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(value.with_context(|| format!("the kernel does not tell {name}"))? * 1024)
}

/// What an idle connection costs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) resident: u64,
    pub(crate) pinned: u64,
    /// With what the kernel and its driver need for it.
    pub(crate) host: u64,
}

impl Cost {
    /// The inverse of its `Display`.
    pub(crate) fn read(output: &str) -> Result<Self> {
        let figure = |name: &str| {
            output
                .split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
                .with_context(|| format!("there is no {name} in {output:?}"))
        };
        Ok(Self {
            resident: figure("resident")?,
            pinned: figure("pinned")?,
            host: figure("host")?,
        })
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "resident={} pinned={} host={}",
            self.resident, self.pinned, self.host
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_comes_back_as_it_was_printed() {
        let cost = Cost {
            resident: 1,
            pinned: 2,
            host: 3,
        };
        assert_eq!(Cost::read(&cost.to_string()).unwrap(), cost);
        assert!(Cost::read("resident=1 pinned=2").is_err());
    }

    #[test]
    fn fields_of_the_kernel_are_kilobytes() {
        let text = "VmPin:\t      12 kB\nVmRSS:\t    3000 kB\n";
        assert_eq!(field(text, "VmRSS").unwrap(), 3_072_000);
        assert!(field(text, "VmLck").is_err());
    }
}
