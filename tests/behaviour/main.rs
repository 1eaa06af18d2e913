//! Tests that the byte streams of `rdmsg` behave like the streams of `std::net`. The tests in
//! `suite.rs` run against both types of streams. By default, the streams of `rdmsg` use TCP. In the
//! lab (`docs/lab.md`), the variable `LAB_ADDR` contains the address of an RDMA device, and these
//! streams use RDMA.

#![expect(
    clippy::duplicate_mod,
    reason = "the suite runs against two stream types"
)]

use std::time::Duration;

use rdmsg::Config;

mod buffers;
mod rdmsg_only;

#[path = "."]
mod over_std {
    use std::net::{SocketAddr, TcpListener as Listener, TcpStream as Stream};

    fn bind() -> Listener {
        Listener::bind("127.0.0.1:0").unwrap()
    }

    fn connect(addr: SocketAddr) -> Stream {
        Stream::connect(addr).unwrap()
    }

    #[path = "suite.rs"]
    mod suite;
}

#[path = "."]
mod over_rdmsg {
    use std::net::SocketAddr;

    use rdmsg::{Stream, StreamListener as Listener};

    fn bind() -> Listener {
        Listener::bind(super::listen_address()).unwrap()
    }

    fn connect(addr: SocketAddr) -> Stream {
        Stream::connect_timeout(addr, super::TIME_LIMIT).unwrap()
    }

    #[path = "suite.rs"]
    mod suite;
}

/// A timeout that is never reached, even on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns `config`, with a connect timeout that suffices on a busy machine.
fn patient(config: &Config) -> Config {
    config.clone().with(|c| c.connect_timeout = TIME_LIMIT)
}

/// Returns the address to listen on.
fn listen_address() -> String {
    match std::env::var("LAB_ADDR") {
        Ok(address) => format!("{address}:0"),
        Err(_) => "127.0.0.1:0".to_owned(),
    }
}
