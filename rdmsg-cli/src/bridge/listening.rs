use std::{io, net::SocketAddr};

use anyhow::{Context, Error, Result, anyhow};
use rdmsg::{Config, Engine, Listener, ToAddresses, tokio::StreamListener};
use tokio::net::{TcpListener, TcpSocket, lookup_host};

use super::{
    address::Address,
    options::WAITING,
    session::{Plain, Rdmsg},
};

/// The maximum number of plain connections that the kernel queues until the bridge accepts them.
const BACKLOG: u32 = 4096;

/// The listener of a bridge.
#[derive(Debug)]
pub(super) enum Listening {
    Plain(TcpListener),
    Rdmsg(StreamListener),
}

/// An accepted connection, with the peer's address.
#[derive(Debug)]
pub(super) enum Incoming {
    Plain(Plain, SocketAddr),
    Rdmsg(Rdmsg, SocketAddr),
}

/// The error of a failed accept.
#[derive(Debug)]
pub(super) enum AcceptFailure {
    /// A temporary error: the next accept may succeed.
    Now(io::Error),
    /// A final error: no further connection can be accepted.
    Ever(io::Error),
}

impl Listening {
    pub(super) async fn bind_plain(address: &Address) -> Result<Self> {
        let fail = || format!("cannot listen on {address}");
        let mut error = None;
        for addr in lookup_host(address.host_port()).await.with_context(fail)? {
            match bind(addr) {
                Ok(listener) => return Ok(Self::Plain(listener)),
                Err(failed) => error = Some(failed),
            }
        }
        let error = error.unwrap_or_else(|| io::Error::other("the name has no address"));
        Err(advise(error)).with_context(fail)
    }

    /// Resolves the name and then listens. Blocks the thread during the name resolution.
    pub(super) fn bind_rdmsg(address: &Address, config: &Config, engine: &Engine) -> Result<Self> {
        let fail = || format!("cannot listen on {address}");
        let addrs = address.host_port().to_addresses().with_context(fail)?;
        let listener = Listener::builder()
            .config(config)
            .engine(engine)
            .backlog(WAITING)
            .half_open(WAITING)
            // Bind the listener again if its device is removed and added again.
            .rebind(true)
            .bind_stream(addrs)
            .and_then(StreamListener::from_std)
            .with_context(fail)?;
        Ok(Self::Rdmsg(listener))
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(listener) => listener.local_addr(),
            Self::Rdmsg(listener) => listener.local_addr(),
        }
    }

    /// Waits for the next connection. This method is cancel safe: dropping the future loses no
    /// connection.
    pub(super) async fn accept(&self) -> Result<Incoming, AcceptFailure> {
        match self {
            // Each error is temporary: it concerns one connection, or the limit on open files.
            Self::Plain(listener) => match listener.accept().await {
                Ok((socket, peer)) => Ok(Incoming::Plain(Plain::new(socket), peer)),
                Err(error) => Err(AcceptFailure::Now(error)),
            },
            Self::Rdmsg(listener) => match listener.accept().await {
                Ok((stream, peer)) => Ok(Incoming::Rdmsg(Rdmsg::new(stream), peer)),
                Err(error) if is_final(&error) => Err(AcceptFailure::Ever(error)),
                Err(error) => Err(AcceptFailure::Now(error)),
            },
        }
    }
}

fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = match addr {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Adds a remedy to the error of a failed bind.
fn advise(error: io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program listens on this port: `ss -ltnp` shows which; choose another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this host does not have the address: see `ip address`; 0.0.0.0 means all addresses"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 require the capability CAP_NET_BIND_SERVICE; choose a higher port"
        }
        _ => return error.into(),
    };
    anyhow!("{error}: {advice}")
}

fn is_final(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(
        error,
        Some(
            rdmsg::Error::ListenerClosed
                | rdmsg::Error::ListenerEnded { .. }
                | rdmsg::Error::EngineShutDown
        )
    )
}
