//! The root module of each generated test program. The generator appends a declaration for each
//! module of the suite.

#![allow(dead_code, unused_imports)]

// std's tests refer to these names with the prefix `crate`.
pub use std::{env, fmt, io, mem, os, sync, thread, time};

pub mod net {
    pub use std::net::*;

    // In the program that tests sockets, the generator omits the next line.
    pub use rdmsg::{Stream as TcpStream, StreamListener as TcpListener};

    /// Functions that return free addresses. No other test of this run uses these addresses.
    pub mod test {
        use std::{
            net::SocketAddr,
            process,
            sync::atomic::{AtomicU16, Ordering},
        };

        static TAKEN: AtomicU16 = AtomicU16::new(0);

        pub fn next_test_ip4() -> SocketAddr {
            at("127.0.0.1")
        }

        pub fn next_test_ip6() -> SocketAddr {
            at("::1")
        }

        /// Returns an address with a free port. Each test runs in its own process, so the process
        /// id determines the ports of the test. All ports are below the range from which the kernel
        /// chooses ports.
        fn at(host: &str) -> SocketAddr {
            let port = 20_000 + (process::id() % 1200) as u16 * 10;
            let port = port + TAKEN.fetch_add(1, Ordering::Relaxed);
            SocketAddr::new(crate::here(host).parse().unwrap(), port)
        }
    }
}

/// Returns `text`. In the lab, replaces each loopback address in the text with the address of the
/// RDMA device.
pub fn here(text: &str) -> &'static str {
    let address = |name, loopback: &str| env::var(name).unwrap_or_else(|_| loopback.to_owned());
    let v4 = address("LAB_ADDR", "127.0.0.1");
    let mut text = text.replace("127.0.0.1", &v4);
    if env::var_os("LAB_ADDR").is_some() {
        text = text.replace("localhost", &v4);
    }
    text.replace("::1", &address("LAB_ADDR6", "::1")).leak()
}

/// Returns an octet of the IPv4 address that replaces 127.0.0.1.
fn octet(at: usize) -> u8 {
    here("127.0.0.1").parse::<net::Ipv4Addr>().unwrap().octets()[at]
}
