//! The traits of servers and clients of HTTP and gRPC, for streams and listeners. The feature of
//! each crate has the crate's name.

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "hyper-util")]
mod hyper_util;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(any(feature = "axum", feature = "hyper-util"))]
use std::{fmt, net::SocketAddr};

#[cfg(feature = "hyper-util")]
pub use self::hyper_util::HttpConnector;

/// The peer's address, for the code that handles a request or its answer (features `axum` and
/// `hyper-util`).
///
/// * A handler of axum takes `ConnectInfo(PeerAddr(peer)): ConnectInfo<PeerAddr>` if the service
///   is made with `into_make_service_with_connect_info::<PeerAddr>()`. [`SocketAddr`] itself
///   cannot implement axum's trait for a listener of this crate.
/// * An answer that hyper-util's client has received over a
///   [`tokio::Stream`](crate::tokio::Stream) has it among its extensions.
#[cfg(any(feature = "axum", feature = "hyper-util"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

#[cfg(any(feature = "axum", feature = "hyper-util"))]
impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
