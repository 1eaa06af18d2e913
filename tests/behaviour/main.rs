//! Tests that the byte streams of `rdmsg` behave like the streams of `std::net`. The tests in
//! `suite.rs` run against both types of streams. By default, the streams of `rdmsg` use TCP. In the
//! lab (`docs/lab.md`), the variable `LAB_ADDR` contains the address of an RDMA device, and these
//! streams use RDMA.

#![expect(
    clippy::duplicate_mod,
    reason = "the suite runs against two stream types"
)]

mod buffers;
mod rdmsg_only;

#[path = "."]
mod over_std {
    use std::net::{TcpListener as Listener, TcpStream as Stream};

    fn bind() -> Listener {
        Listener::bind("127.0.0.1:0").unwrap()
    }

    #[path = "suite.rs"]
    mod suite;
}

#[path = "."]
mod over_rdmsg {
    use rdmsg::{Stream, StreamListener as Listener};

    fn bind() -> Listener {
        Listener::bind(super::listen_address()).unwrap()
    }

    #[path = "suite.rs"]
    mod suite;
}

/// Returns the address to listen on.
fn listen_address() -> String {
    match std::env::var("LAB_ADDR") {
        Ok(address) => format!("{address}:0"),
        Err(_) => "127.0.0.1:0".to_owned(),
    }
}
