//! Options that the servers and clients share.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use rdmsg::{Config, TransportChoice};

/// The limits after which a lost peer is detected.
#[derive(Args, Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these are all")]
pub struct Keepalive {
    /// How long a peer may be silent before it is probed, in milliseconds
    #[arg(long, global = true, value_name = "MS", default_value_t = 2000)]
    pub keepalive_interval: u64,
    /// How long it may take to answer, in milliseconds; then the connection ends
    #[arg(long, global = true, value_name = "MS", default_value_t = 3000)]
    pub keepalive_timeout: u64,
    /// How long a connection that was lost waits to be resumed, in seconds; 0: it ends
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
    /// Returns the configuration of a connection.
    #[must_use]
    pub fn config(&self) -> Config {
        Config::default().with(|c| {
            c.keepalive_interval = Some(Duration::from_millis(self.keepalive_interval));
            c.keepalive_timeout = Duration::from_millis(self.keepalive_timeout);
            c.resume = Duration::from_secs(self.resume);
        })
    }
}

/// The options of a server.
#[derive(Args, Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these are all")]
pub struct ServerOptions {
    /// Address and port to listen on for rdmsg; port 0 takes a free one
    #[arg(default_value = "0.0.0.0:7471")]
    pub address: SocketAddr,
    /// Listen on this address and port for plain TCP as well
    #[arg(long, value_name = "ADDRESS")]
    pub tcp: Option<SocketAddr>,
    /// How long clients may take to finish after SIGINT or SIGTERM, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub patience: u64,
    /// Show the log of the library
    #[arg(long)]
    pub debug: bool,
    /// The limits after which a lost peer is detected.
    #[command(flatten)]
    pub keepalive: Keepalive,
}

impl ServerOptions {
    /// Returns the default options of a server on this address.
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

    /// Returns how long clients may take to finish.
    #[must_use]
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }
}

/// The options of a client.
#[derive(Args, Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "these are all")]
pub struct ClientOptions {
    /// The server's address and port; a prefix `rdma://` or `tcp://` selects the transport of rdmsg
    pub address: String,
    /// Connect by plain TCP, without rdmsg
    #[arg(long)]
    pub tcp: bool,
    /// Show the log of the library
    #[arg(long)]
    pub debug: bool,
    /// The limits after which a lost peer is detected.
    #[command(flatten)]
    pub keepalive: Keepalive,
}

impl ClientOptions {
    /// Returns the default options of a client of this server.
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

    /// Returns the server's host and port, without the scheme.
    #[must_use]
    pub fn host(&self) -> &str {
        let scheme = self.address.split_once("://");
        scheme.map_or(&self.address, |(_, host)| host)
    }
}
