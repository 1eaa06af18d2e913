//! A web service that axum can serve on any listener.
//!
//! `/` returns a greeting with the peer's address, and `/echo` returns the body of the request.

use std::{fmt, io};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, DefaultBodyLimit, connect_info::Connected},
    routing::{get, post},
    serve::{IncomingStream, Listener},
};
use tokio_util::sync::CancellationToken;

/// Serves the connections of a listener until the token is cancelled, and then completes the
/// requests in progress.
///
/// `P` is the type of the peer's address: `SocketAddr` for tokio's `TcpListener`, and
/// `rdmsg::tokio::PeerAddr` for `rdmsg::tokio::StreamListener`. Only this type depends on the
/// listener.
///
/// # Errors
///
/// Never fails. The return type is a `Result` because axum's function returns a `Result`.
pub async fn serve<L, P>(listener: L, stop: CancellationToken) -> io::Result<()>
where
    L: Listener,
    L::Addr: fmt::Debug,
    P: for<'a> Connected<IncomingStream<'a, L>> + fmt::Display,
{
    let service = router::<P>().into_make_service_with_connect_info::<P>();
    axum::serve(listener, service)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}

fn router<P: fmt::Display + Clone + Send + Sync + 'static>() -> Router {
    let greet = async |ConnectInfo(peer): ConnectInfo<P>| format!("hello, {peer}\n");
    let echo = async |body: Body| body;
    Router::new()
        .route("/", get(greet))
        .route("/echo", post(echo))
        .layer(DefaultBodyLimit::disable())
}
