//! Tests that this crate's byte streams behave like the streams of `std::net`. The tests in
//! `suite.rs` run against both types of streams. On this machine, this crate's streams use TCP. In
//! the lab, where `LAB_ADDR` is the address of a device, they use RDMA.

#![expect(
    clippy::duplicate_mod,
    reason = "the suite runs against two stream types"
)]

mod buffers;
mod ours;

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
