//! Implements traits of HTTP and gRPC crates for streams and listeners. Each feature is named after
//! the crate whose traits it implements.

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

/// The peer's address, for code that handles a request or a response (features `axum` and
/// `hyper-util`).
///
/// * If a service is created with `into_make_service_with_connect_info::<PeerAddr>()`, its axum
///   handlers get the address as an argument: `ConnectInfo(PeerAddr(peer)): ConnectInfo<PeerAddr>`.
///   This type is needed because Rust does not let this crate implement axum's trait for
///   [`SocketAddr`].
/// * A response that hyper-util's client has received over a
///   [`tokio::Stream`](crate::tokio::Stream) contains the address in its extensions.
#[cfg(any(feature = "axum", feature = "hyper-util"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

#[cfg(any(feature = "axum", feature = "hyper-util"))]
impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
