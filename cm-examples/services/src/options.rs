//! The command line options that the servers and clients share.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use rdmsg::{Config, TransportChoice};

/// The time limits for detecting a lost peer and for resuming a lost connection.
#[derive(Args, Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these are all")]
pub struct Keepalive {
    /// Probe the peer if no data has arrived from it for this number of milliseconds
    #[arg(long, global = true, value_name = "MS", default_value_t = 2000)]
    pub keepalive_interval: u64,
    /// The time limit in milliseconds for the answer to a probe; if the peer does not answer in
    /// time, the connection is lost
    #[arg(long, global = true, value_name = "MS", default_value_t = 3000)]
    pub keepalive_timeout: u64,
    /// The time limit in seconds for resuming a lost connection, which both sides must set; with 0,
    /// a lost connection ends immediately
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 0)]
    pub resume: u64,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            keepalive_interval: 2000,
            keepalive_timeout: 3000,
            resume: 0,
        }
    }
}

impl Keepalive {
    /// Returns the configuration of a connection with these times.
    #[must_use]
    pub fn config(&self) -> Config {
        Config::default().with(|c| {
            c.keepalive_interval = Some(Duration::from_millis(self.keepalive_interval));
            c.keepalive_timeout = Duration::from_millis(self.keepalive_timeout);
            c.resume = Duration::from_secs(self.resume);
        })
    }
}

/// The command line options of a server.
#[derive(Args, Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these are all")]
pub struct ServerOptions {
    /// The address and port to listen on for rdmsg; with port 0, the system chooses a free port
    #[arg(default_value = "0.0.0.0:7471")]
    pub address: SocketAddr,
    /// Also listen on this address and port, for plain TCP
    #[arg(long, value_name = "ADDRESS")]
    pub tcp: Option<SocketAddr>,
    /// The time limit in seconds for clients to finish after SIGINT or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub patience: u64,
    /// Show the log of the library
    #[arg(long)]
    pub debug: bool,
    /// The time limits for the keepalive and for resuming lost connections.
    #[command(flatten)]
    pub keepalive: Keepalive,
}

impl ServerOptions {
    /// Returns the default options for a server on this address.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            tcp: None,
            patience: 5,
            debug: false,
            keepalive: Keepalive::default(),
        }
    }

    /// Returns the configuration of the server's connections.
    #[must_use]
    pub fn config(&self) -> Config {
        self.keepalive.config()
    }

    /// Returns the time limit for clients to finish after a signal.
    #[must_use]
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }
}

/// The command line options of a client.
#[derive(Args, Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these are all")]
pub struct ClientOptions {
    /// The address and port of the server; with the prefix `rdma://` or `tcp://`, rdmsg uses only
    /// this transport
    pub address: String,
    /// Connect over plain TCP instead of rdmsg
    #[arg(long)]
    pub tcp: bool,
    /// Show the log of the library
    #[arg(long)]
    pub debug: bool,
    /// The time limits for the keepalive and for resuming lost connections.
    #[command(flatten)]
    pub keepalive: Keepalive,
}

impl ClientOptions {
    /// Returns the default options for a client of the server at this address.
    #[must_use]
    pub fn to(address: impl ToString) -> Self {
        Self {
            address: address.to_string(),
            tcp: false,
            debug: false,
            keepalive: Keepalive::default(),
        }
    }

    /// Returns the configuration of the client's connections.
    #[must_use]
    pub fn config(&self) -> Config {
        let config = self.keepalive.config();
        match self.address.split_once("://") {
            Some(("rdma", _)) => config.with(|c| c.transport = TransportChoice::Rdma),
            Some(("tcp", _)) => config.with(|c| c.transport = TransportChoice::Tcp),
            _ => config,
        }
    }

    /// Returns the address without a prefix such as `tcp://`.
    #[must_use]
    pub fn host(&self) -> &str {
        let scheme = self.address.split_once("://");
        scheme.map_or(&self.address, |(_, host)| host)
    }
}
