//! Tests that byte streams behave like the streams of `std::net`: the tests in `suite.rs` run
//! against both. This crate's streams use TCP on this machine, and RDMA in the lab, where
//! `LAB_ADDR` is the address of a device.

#![expect(clippy::duplicate_mod, reason = "the suite runs against both types")]

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
