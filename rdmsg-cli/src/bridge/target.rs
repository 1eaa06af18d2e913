use std::{io, time::Duration};

use anyhow::{Context, Result};
use rdmsg::{Config, Connector, Engine, Error, Listener, TransportChoice};
use tokio::{net::TcpStream, time::timeout};

use super::{
    address::{Address, Scheme},
    session::{Plain, Rdmsg},
};

/// The target of connections.
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

    /// Fails if the address requires RDMA and this machine has none.
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

/// Fails if this machine has no RDMA, or this process no right to it.
pub(super) fn find_rdma(engine: &Engine) -> Result<(), Error> {
    let config = Config::default().with(|c| c.transport = TransportChoice::Rdma);
    // Listening needs the same rights and libraries as connecting.
    Listener::builder()
        .config(&config)
        .engine(engine)
        .bind("0.0.0.0:0")
        .map(drop)
}

/// Connects to a plain socket.
pub(super) async fn connect_plain(address: &Address, limit: Duration) -> io::Result<Plain> {
    let connected = timeout(limit, TcpStream::connect(address.place())).await;
    let late = |_| {
        let text = format!("no answer within {limit:?} (--connect-timeout)");
        io::Error::new(io::ErrorKind::TimedOut, text)
    };
    Ok(Plain::new(connected.map_err(late)??))
}

/// Connects to a stream of rdmsg.
pub(super) async fn connect_rdmsg(address: &Address, connector: &Connector) -> io::Result<Rdmsg> {
    let stream = rdmsg::tokio::Stream::connect_with(connector, address.place()).await?;
    Ok(Rdmsg::new(stream))
}
