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
        Listener::bind((common::local_ip(), 0)).unwrap()
    }

    fn connect(addr: SocketAddr) -> Stream {
        Stream::connect_timeout(addr, common::TIME_LIMIT).unwrap()
    }

    #[path = "suite.rs"]
    mod suite;
}
