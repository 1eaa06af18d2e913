//! A stream over rdmsg or over TCP, for servers that accept both in one loop.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use rdmsg::{
    Addresses, Connector, Engine, Error, Listener, ToAddresses,
    tokio::{Stream, StreamListener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::options::{ClientOptions, ServerOptions};

/// The pause after a failed accept. Without the pause, the loop would keep a processor busy while
/// the host has no free descriptors or no free memory.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection over rdmsg or over plain TCP.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there is no third")]
pub enum Socket {
    /// An rdmsg stream.
    Rdmsg(Stream),
    /// A TCP socket of the kernel.
    Tcp(TcpStream),
}

impl Socket {
    /// Connects to the address in the options, over the transport selected by the options.
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be resolved or the connection cannot be established.
    pub async fn connect(options: &ClientOptions, engine: &Engine) -> io::Result<Self> {
        if options.tcp {
            let stream = TcpStream::connect(&options.address).await?;
            stream.set_nodelay(true)?;
            return Ok(Self::Tcp(stream));
        }
        let addresses = resolve(&options.address).await?;
        let connector = Connector::new().config(&options.config()).engine(engine);
        let endpoint = connector.start_stream(addresses)?.await?;
        Stream::new(endpoint).map(Self::Rdmsg)
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    ///
    /// Fails if the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Rdmsg(stream) => stream.peer_addr(),
            Self::Tcp(stream) => stream.peer_addr(),
        }
    }
}

/// Resolves a host name on a thread of the blocking pool, so that the lookup does not block other
/// tasks.
async fn resolve(address: &str) -> io::Result<Addresses> {
    let address = address.to_owned();
    let found = tokio::task::spawn_blocking(move || address.to_addresses());
    Ok(found.await.map_err(io::Error::other)??)
}

/// A listener for rdmsg streams, and optionally a second listener for plain TCP.
#[derive(Debug)]
pub struct Listeners {
    rdmsg: StreamListener,
    tcp: Option<TcpListener>,
}

impl Listeners {
    /// Starts listening on the addresses in the options.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot listen on an address.
    pub async fn bind(options: &ServerOptions, engine: &Engine) -> io::Result<Self> {
        let tcp = match options.tcp {
            Some(address) => Some(TcpListener::bind(address).await?),
            None => None,
        };
        let config = options.config();
        let rdmsg = Listener::builder()
            .config(&config)
            .engine(engine)
            .bind_stream(options.address)
            .and_then(StreamListener::from_std)?;
        Ok(Self { rdmsg, tcp })
    }

    /// Returns the address of the rdmsg listener, and the address of the TCP listener if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the system does not report the address of a socket.
    pub fn local_addrs(&self) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
        let tcp = self.tcp.as_ref().map(TcpListener::local_addr);
        Ok((self.rdmsg.local_addr()?, tcp.transpose()?))
    }

    /// Accepts the next connection. If an accept fails, for example because no descriptor is
    /// available, logs the error and tries again after a pause.
    ///
    /// # Errors
    ///
    /// Fails if the rdmsg listener has ended.
    pub async fn accept(&self) -> io::Result<(Socket, SocketAddr)> {
        loop {
            match std::future::poll_fn(|cx| self.poll_accept(cx)).await {
                Err(error) if !is_end_of_listener(&error) => {
                    log::warn!("cannot accept a connection; trying again: {error}");
                    sleep(PAUSE).await;
                }
                accepted => return accepted,
            }
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>> {
        if let Some(tcp) = &self.tcp
            && let Poll::Ready(accepted) = tcp.poll_accept(cx)
        {
            let (stream, peer) = accepted?;
            stream.set_nodelay(true)?;
            return Poll::Ready(Ok((Socket::Tcp(stream), peer)));
        }
        let (stream, peer) = ready!(self.rdmsg.poll_accept(cx))?;
        Poll::Ready(Ok((Socket::Rdmsg(stream), peer)))
    }
}

/// Returns true if the error means that the rdmsg listener has ended. After any other error, the
/// server can accept further connections.
fn is_end_of_listener(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(
        error,
        Some(Error::ListenerClosed | Error::ListenerEnded { .. } | Error::EngineShutDown)
    )
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Rdmsg(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Rdmsg(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Rdmsg(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Rdmsg(stream) => stream.is_write_vectored(),
            Self::Tcp(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Rdmsg(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Rdmsg(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Tells tonic the addresses of a connection. The two stream types in this enum also implement this
/// trait.
impl Connected for Socket {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match self {
            Self::Rdmsg(stream) => stream.connect_info(),
            Self::Tcp(stream) => stream.connect_info(),
        }
    }
}
