use std::{future::pending, io, net::SocketAddr, time::Duration};

use ::axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use ::tokio::time::sleep;

use super::PeerAddr;
use crate::tokio::{listener::accept, stream::Stream, stream_listener::StreamListener};

/// The pause after the runtime failed to register a connection, for example because the limit
/// `fs.epoll.max_user_watches` is reached.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets `axum::serve` accept streams (feature `axum`).
///
/// If the runtime cannot register an accepted connection, `accept` logs a warning, drops the
/// connection, and accepts the next one after a pause of 1 s. When the listener has ended, `accept`
/// logs an error and never returns, so that `axum::serve` continues to serve its open connections.
///
/// # Examples
///
/// ```no_run
/// use axum::{Router, extract::ConnectInfo, routing::get};
/// use rdmsg::tokio::{PeerAddr, StreamListener};
///
/// # async fn run() -> std::io::Result<()> {
/// let greet = |ConnectInfo(PeerAddr(peer)): ConnectInfo<PeerAddr>| async move {
///     format!("hello, {peer}\n")
/// };
/// let router = Router::new().route("/", get(greet));
/// let listener = StreamListener::bind("0.0.0.0:7471").await?;
/// axum::serve(listener, router.into_make_service_with_connect_info::<PeerAddr>()).await
/// # }
/// ```
impl Listener for StreamListener {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        loop {
            let accepted = match accept(&self.inner).await {
                Ok(endpoint) => self.stream(endpoint),
                Err(error) => {
                    error!(
                        Listener,
                        "listener on {}: axum accepts no more streams, but continues to serve open \
                         ones: {error}",
                        self.inner.local_addr()
                    );
                    pending().await
                }
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    warn_sparsely!(
                        Listener,
                        "listener on {}: dropped an accepted connection, because the runtime \
                         cannot register it: {error}; continues to accept after 1 s",
                        self.inner.local_addr()
                    );
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

/// Lets `Router::into_make_service_with_connect_info` pass the peer's address to handlers (feature
/// `axum`).
impl Connected<IncomingStream<'_, StreamListener>> for PeerAddr {
    fn connect_info(stream: IncomingStream<'_, StreamListener>) -> Self {
        Self(*stream.remote_addr())
    }
}
