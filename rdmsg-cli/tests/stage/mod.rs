//! Helpers for tests of bridges: bridge processes, services, and checks of how a connection ended.

use std::{
    env, fs,
    io::{ErrorKind, Read, Write, copy},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
};

use nix::{
    libc::linger,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{setsockopt, sockopt},
    },
};
use toolbox::{Bridge, Ended, TIME_LIMIT, network::reserved_address};

/// Returns the value of the environment variable `LAB_ADDR`: the address of an RDMA device.
pub(crate) fn device() -> Option<String> {
    env::var("LAB_ADDR").ok()
}

/// Returns the URL scheme of connections between two bridges: RDMA if `LAB_ADDR` is set, and TCP
/// otherwise.
fn scheme() -> &'static str {
    device().map_or("rdmsg+tcp", |_| "rdma")
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_rdmsg"))
}

/// Starts the bridge that connects to the service.
pub(crate) fn far(service: SocketAddr, more: &[&str]) -> Bridge {
    let address = match device() {
        Some(host) => format!("{host}:0").parse().unwrap(),
        None => reserved_address(),
    };
    far_at(address, service, more)
}

pub(crate) fn far_at(address: SocketAddr, service: SocketAddr, more: &[&str]) -> Bridge {
    let listen = format!("{}://{address}", scheme());
    start(&listen, &format!("tcp://{service}"), more)
}

/// Starts the bridge that the clients connect to.
pub(crate) fn near(far: &Bridge, more: &[&str]) -> Bridge {
    let to = format!("{}://{}", scheme(), far.address);
    start("tcp://127.0.0.1:0", &to, more)
}

/// Starts a bridge that listens on one address and connects to another.
pub(crate) fn start(listen: &str, to: &str, more: &[&str]) -> Bridge {
    Bridge::start(program(), listen, to, more).unwrap()
}

/// Runs a bridge that must fail to start. Returns its output and exit status.
pub(crate) fn refused(listen: &str, to: &str) -> Ended {
    Bridge::refused(program(), listen, to).unwrap()
}

/// A service that echoes bytes on any number of connections.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
}

impl Service {
    pub(crate) fn echo() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let small = thread::Builder::new().stack_size(128 << 10);
                let mut stream = stream.unwrap();
                small.spawn(move || echo(&mut stream)).unwrap();
            }
        });
        Self { address }
    }
}

/// Echoes bytes until the client shuts down its writing direction. Then shuts down the direction to
/// the client.
fn echo(stream: &mut TcpStream) {
    if let Ok(mut writing) = stream.try_clone()
        && copy(stream, &mut writing).is_ok()
    {
        let _ = writing.flush();
        let _ = writing.shutdown(Shutdown::Write);
    }
}

/// Connects to a TCP socket. The time limit for reads is `TIME_LIMIT`.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    stream
}

/// Closes the stream with a linger time of 0 s, so the kernel sends a reset.
pub(crate) fn reset(stream: TcpStream) {
    let now = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &now).unwrap();
}

/// Returns true if the next read fails because the peer has reset the stream, and false if the read
/// fails with another error. Panics if the read returns bytes or the end of file.
pub(crate) fn is_reset(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    match stream.read(&mut [0]) {
        Ok(count) => panic!("the stream must be reset, but a read returned {count} bytes"),
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Returns random bytes. The same seed gives the same bytes.
pub(crate) fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Returns the maximum number of bytes that the kernel buffers for one direction of a connection.
pub(crate) fn socket_buffers() -> usize {
    let most = |what: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{what}")).unwrap();
        let most = text.split_whitespace().last().unwrap();
        most.parse::<usize>().unwrap()
    };
    most("rmem") + most("wmem")
}

/// Raises the soft limit on open files to the hard limit.
pub(crate) fn raise_open_files() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}
