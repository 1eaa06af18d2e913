//! The traits of servers and clients of HTTP and gRPC, for streams and listeners. The feature of
//! each crate has the crate's name.

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "hyper-util")]
mod hyper_util;
#[cfg(any(feature = "axum", feature = "hyper-util"))]
mod peer_addr;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(feature = "hyper-util")]
pub use self::hyper_util::HttpConnector;
#[cfg(any(feature = "axum", feature = "hyper-util"))]
pub use self::peer_addr::PeerAddr;
