//! Tests each method of std's and tokio's TCP types with one line of code. Also tests the semantics
//! of readiness. These tests run against the TCP types and against this crate's types. This crate's
//! types use TCP on this machine, and RDMA in the lab, where `LAB_ADDR` is the address of a device.
//! The modules `auto_traits`, `differences` and `write_readiness` contain further tests of this
//! crate's types.

#![expect(clippy::duplicate_mod, reason = "pairs of modules share a file")]

use std::net::SocketAddr;

#[cfg(feature = "tokio")]
mod auto_traits;
mod differences;
#[cfg(feature = "tokio")]
mod write_readiness;

#[path = "."]
mod std_over_std {
    use std::net::{TcpListener as Listener, TcpStream as Stream};

    use super::free_tcp_address as free_address;

    #[path = "std_lines.rs"]
    mod lines;
}

#[path = "."]
mod std_over_rdmsg {
    use rdmsg::{Stream, StreamListener as Listener};

    use super::free_rdmsg_address as free_address;

    #[path = "std_lines.rs"]
    mod lines;
}

#[cfg(feature = "tokio")]
#[path = "."]
mod tokio_over_tokio {
    use std::{
        io,
        net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    };

    use tokio::net::{
        TcpListener as Listener, TcpStream as Stream,
        tcp::{OwnedReadHalf, ReuniteError},
    };

    use super::free_tcp_address as free_address;

    /// The final words of the error that `reunite` returns for halves of different streams.
    const REUNITE_ERROR_END: &str = "from the same socket";

    #[path = "conversions.rs"]
    mod conversions;
    #[path = "tokio_lines.rs"]
    mod lines;
    #[path = "tokio_waits.rs"]
    mod waits;

    async fn connect(addr: SocketAddr) -> io::Result<Stream> {
        Stream::connect(addr).await
    }

    /// Does nothing. The corresponding function for rdmsg waits until the peer has received all
    /// bytes.
    async fn delivered(_: &OwnedReadHalf) {}
}

#[cfg(feature = "tokio")]
#[path = "."]
mod tokio_over_rdmsg {
    use std::{io, net::SocketAddr};

    use rdmsg::{
        Stream as StdStream, StreamListener as StdListener,
        tokio::{OwnedReadHalf, ReuniteError, Stream, StreamListener as Listener},
    };

    use super::free_rdmsg_address as free_address;

    /// The final words of the error that `reunite` returns for halves of different streams.
    const REUNITE_ERROR_END: &str = "of the same stream";

    #[path = "conversions.rs"]
    mod conversions;
    #[path = "tokio_lines.rs"]
    mod lines;
    #[path = "tokio_waits.rs"]
    mod waits;

    async fn connect(addr: SocketAddr) -> io::Result<Stream> {
        Stream::connect_with(&common::connector(), addr).await
    }

    /// Waits until the peer has received all bytes.
    async fn delivered(half: &OwnedReadHalf) {
        half.endpoint().flushed().await.unwrap();
    }
}

/// Returns an address of this machine with port 0, which selects a free port.
fn free_tcp_address() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Returns an address for rdmsg's types with port 0, which selects a free port. In the lab, the
/// address belongs to an RDMA device. Outside the lab, the address is 127.0.0.1.
fn free_rdmsg_address() -> SocketAddr {
    (common::local_ip(), 0).into()
}

/// Returns true if programs can set the time to live (TTL) of connections at the address `at`.
fn has_ttl(at: SocketAddr) -> bool {
    at.ip().is_loopback()
}
