use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll, ready},
};

use super::{
    listener::{accept, bind},
    stream::Stream,
    turn::cooperate,
};
use crate::{
    addresses::ToAddresses, connector::lookup::addresses, endpoint::Endpoint,
    listener::ListenerBuilder, stream::ListenerTtl, transport_choice::Transport,
};

/// A listener that accepts [`Stream`]s on an address, like [`tokio::net::TcpListener`].
///
/// # Examples
///
/// ```no_run
/// # async fn run() -> std::io::Result<()> {
/// let listener = rdmsg::tokio::StreamListener::bind("0.0.0.0:7471").await?;
/// loop {
///     let (mut stream, peer) = listener.accept().await?;
///     println!("connected to {peer}");
///     tokio::spawn(async move {
///         let (mut read, mut write) = tokio::io::split(stream);
///         tokio::io::copy(&mut read, &mut write).await
///     });
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct StreamListener {
    pub(super) inner: crate::listener::Listener,
    ttl: ListenerTtl,
}

impl StreamListener {
    /// Listens on an address, with the default [`Config`](crate::Config). If `address` is a host
    /// name, a separate thread looks it up.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::bind`](crate::Listener::bind), as [`io::Error`]s.
    pub async fn bind(address: impl ToAddresses) -> io::Result<Self> {
        let addresses = addresses(address).await?;
        Self::from_std(crate::stream::StreamListener::bind(addresses)?)
    }

    /// Listens with the settings of `builder`, such as a configuration or an engine.
    ///
    /// # Errors
    ///
    /// The errors of [`ListenerBuilder::bind_stream`].
    pub async fn bind_with(
        builder: &ListenerBuilder,
        address: impl ToAddresses,
    ) -> io::Result<Self> {
        let addresses = addresses(address).await?;
        let bound = bind(builder, move |builder| builder.bind_stream(addresses)).await;
        Self::from_std(bound?)
    }

    /// Converts a synchronous listener into an asynchronous one. `listener` may be in blocking or
    /// non-blocking mode.
    ///
    /// # Errors
    ///
    /// [`ResourceBusy`](io::ErrorKind::ResourceBusy) if the listener has another handle. In this
    /// case `listener` is dropped.
    pub fn from_std(listener: crate::stream::StreamListener) -> io::Result<Self> {
        let (inner, ttl) = listener.into_parts()?;
        Ok(Self { inner, ttl })
    }

    /// Converts the listener into a synchronous one.
    ///
    /// The result is in non-blocking mode, as with tokio's method: see
    /// [`set_nonblocking`](crate::StreamListener::set_nonblocking).
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with tokio's type.
    pub fn into_std(self) -> io::Result<crate::stream::StreamListener> {
        Ok(crate::stream::StreamListener::from_parts(
            self.inner, self.ttl, true,
        ))
    }

    /// Accepts the next stream. Also returns the peer's address.
    ///
    /// Dropping the future loses no stream.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::accept`](crate::Listener::accept), as [`io::Error`]s.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let endpoint = accept(&self.inner).await?;
        self.stream(endpoint)
    }

    /// Accepts the next stream, like [`accept`](Self::accept), for use in a `poll` function. Only
    /// one task at a time can wait in this way.
    ///
    /// # Errors
    ///
    /// The errors of [`accept`](Self::accept).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime that has I/O enabled.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        let endpoint = ready!(cooperate(cx, |cx| self.inner.poll_accept(cx)))?;
        Poll::Ready(self.stream(endpoint))
    }

    /// Returns the address of the listener. It contains the actual port if the program requested
    /// port 0.
    ///
    /// # Errors
    ///
    /// Never fails. It returns a `Result` for compatibility with tokio's listener.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner.local_addr())
    }

    /// Returns the time to live set by [`set_ttl`](Self::set_ttl), or the system default.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](io::ErrorKind::Unsupported) if the listener accepts no TCP connections.
    pub fn ttl(&self) -> io::Result<u32> {
        self.ttl.get(&self.inner)
    }

    /// Sets the [time to live](Stream::set_ttl), from 1 to 255 hops. It applies to streams over TCP
    /// that are accepted later. Streams over other transports are not affected.
    ///
    /// # Errors
    ///
    /// * [`InvalidInput`](io::ErrorKind::InvalidInput) if `ttl` is not in the range 1 to 255.
    /// * [`Unsupported`](io::ErrorKind::Unsupported) if the listener accepts no TCP connections.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.ttl.set(ttl, &self.inner)
    }

    /// Returns the transports over which the listener accepts streams.
    #[must_use]
    pub fn transports(&self) -> &'static [Transport] {
        self.inner.transports()
    }

    /// Stops listening, as [`Listener::close`](crate::Listener::close) does.
    ///
    /// [`accept`](Self::accept) still returns the streams that were accepted before. After these
    /// streams it returns an error. Established streams stay open.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Creates a stream from a connection that `inner` has accepted. If this method fails, only
    /// this connection is lost, and the listener can accept further connections. In contrast, if
    /// `inner` fails to accept, the listener has ended.
    #[track_caller]
    pub(super) fn stream(&self, accepted: Endpoint) -> io::Result<(Stream, SocketAddr)> {
        self.ttl.apply(&accepted);
        let peer = accepted.peer_addr();
        Ok((Stream::accepted(accepted)?, peer))
    }
}

impl TryFrom<crate::stream::StreamListener> for StreamListener {
    type Error = io::Error;

    /// Works like [`from_std`](Self::from_std).
    fn try_from(listener: crate::stream::StreamListener) -> io::Result<Self> {
        Self::from_std(listener)
    }
}
