use std::{io, net::SocketAddr};

use anyhow::{Context, Error, Result, anyhow};
use rdmsg::{Config, Engine, Listener, ToAddresses, tokio::StreamListener};
use tokio::net::{TcpListener, TcpSocket, lookup_host};

use super::{
    address::Address,
    options::WAITING,
    session::{Plain, Rdmsg},
};

/// The number of connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 4096;

/// The listener of a bridge.
#[derive(Debug)]
pub(super) enum Listening {
    Plain(TcpListener),
    Rdmsg(StreamListener),
}

/// An incoming connection.
#[derive(Debug)]
pub(super) enum Incoming {
    Plain(Plain, SocketAddr),
    Rdmsg(Rdmsg, SocketAddr),
}

/// Why none came in.
#[derive(Debug)]
pub(super) enum AcceptFailure {
    /// The next one may.
    Now(io::Error),
    /// No further connection can be accepted, because of this error.
    Ever(io::Error),
}

impl Listening {
    pub(super) async fn bind_plain(address: &Address) -> Result<Self> {
        let fail = || format!("cannot listen on {address}");
        let mut error = None;
        for place in lookup_host(address.place()).await.with_context(fail)? {
            match bind(place) {
                Ok(listener) => return Ok(Self::Plain(listener)),
                Err(failed) => error = Some(failed),
            }
        }
        let error = error.unwrap_or_else(|| io::Error::other("the name has no address"));
        Err(advise(error)).with_context(fail)
    }

    /// Looks the name up before it listens. The lookup blocks the thread.
    pub(super) fn bind_rdmsg(address: &Address, config: &Config, engine: &Engine) -> Result<Self> {
        let fail = || format!("cannot listen on {address}");
        let places = address.place().to_addresses().with_context(fail)?;
        let listener = Listener::builder()
            .config(config)
            .engine(engine)
            .backlog(WAITING)
            .half_open(WAITING)
            // A removed device may return.
            .rebind(true)
            .bind_stream(places)
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

    /// Waits for the next connection. Dropping the future loses none.
    pub(super) async fn accept(&self) -> Result<Incoming, AcceptFailure> {
        match self {
            // The failure concerns one connection or the limit of open files, and is temporary.
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

fn bind(place: SocketAddr) -> io::Result<TcpListener> {
    let socket = match place {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(place)?;
    socket.listen(BACKLOG)
}

/// Adds the remedy to an error.
fn advise(error: io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program listens there: `ss -ltnp` shows which; end it, or take another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "it is no address of this host: `ip address` shows those; 0.0.0.0 is all of them"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 take the capability CAP_NET_BIND_SERVICE; take a higher port"
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
