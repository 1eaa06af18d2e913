use std::{io, time::Duration};

use anyhow::{Context, Result};
use rdmsg::{Config, Connector, Engine, Error, Listener, TransportChoice};
use tokio::{net::TcpStream, time::timeout};

use super::{
    address::{Address, Scheme},
    session::{Plain, Rdmsg},
};

/// The target to which a bridge connects.
#[derive(Debug)]
pub(super) enum Target {
    Plain {
        address: Address,
        limit: Duration,
    },
    Rdmsg {
        address: Address,
        connector: Box<Connector>,
    },
}

impl Target {
    pub(super) fn plain(address: Address, limit: Duration) -> Self {
        Self::Plain { address, limit }
    }

    /// Creates a target for an rdmsg stream. Returns an error if the address requires RDMA and this
    /// host has no RDMA.
    pub(super) fn rdmsg(address: Address, config: &Config, engine: &Engine) -> Result<Self> {
        if address.scheme() == Scheme::Rdma {
            find_rdma(engine).with_context(|| format!("cannot connect to {address}"))?;
        }
        let connector = Box::new(Connector::new().config(config).engine(engine));
        Ok(Self::Rdmsg { address, connector })
    }

    pub(super) fn address(&self) -> &Address {
        match self {
            Self::Plain { address, .. } | Self::Rdmsg { address, .. } => address,
        }
    }
}

/// Returns an error if this host has no RDMA, or if this process has no permission to use it.
pub(super) fn find_rdma(engine: &Engine) -> Result<(), Error> {
    let config = Config::default().with(|c| c.transport = TransportChoice::Rdma);
    // Bind a listener as a test, because a bind needs the same permissions and libraries as a
    // connect.
    Listener::builder()
        .config(&config)
        .engine(engine)
        .bind("0.0.0.0:0")
        .map(drop)
}

/// Connects to a plain TCP socket.
pub(super) async fn connect_plain(address: &Address, limit: Duration) -> io::Result<Plain> {
    let connected = timeout(limit, TcpStream::connect(address.host_port())).await;
    let late = |_| {
        let text = format!("no answer within {limit:?} (--connect-timeout)");
        io::Error::new(io::ErrorKind::TimedOut, text)
    };
    Ok(Plain::new(connected.map_err(late)??))
}

/// Connects to an rdmsg stream.
pub(super) async fn connect_rdmsg(address: &Address, connector: &Connector) -> io::Result<Rdmsg> {
    let stream = rdmsg::tokio::Stream::connect_with(connector, address.host_port()).await?;
    Ok(Rdmsg::new(stream))
}
