//! Helpers for tests of bridges: bridge processes, services behind them, and checks of how a
//! connection ends.

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
use toolbox::{Bridge, Ended, TIME_LIMIT};

/// Returns the address of the device in the lab, if there is one.
pub(crate) fn device() -> Option<String> {
    env::var("LAB_ADDR").ok()
}

/// Returns the scheme between two bridges: RDMA in the lab, otherwise TCP.
fn scheme() -> &'static str {
    device().map_or("rdmsg+tcp", |_| "rdma")
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_rdmsg"))
}

/// Starts the bridge at a service.
pub(crate) fn far(service: SocketAddr, more: &[&str]) -> Bridge {
    let host = device().unwrap_or_else(|| "127.0.0.1".into());
    far_at(format!("{host}:0").parse().unwrap(), service, more)
}

pub(crate) fn far_at(place: SocketAddr, service: SocketAddr, more: &[&str]) -> Bridge {
    let listen = format!("{}://{place}", scheme());
    start(&listen, &format!("tcp://{service}"), more)
}

/// Starts the bridge at the clients.
pub(crate) fn near(far: &Bridge, more: &[&str]) -> Bridge {
    let to = format!("{}://{}", scheme(), far.address);
    start("tcp://127.0.0.1:0", &to, more)
}

/// Starts a bridge between any two addresses.
pub(crate) fn start(listen: &str, to: &str, more: &[&str]) -> Bridge {
    Bridge::start(program(), listen, to, more).unwrap()
}

/// Runs a bridge that must not start. Returns its output and status.
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

/// Echoes until the client ends, and then ends its own direction.
fn echo(stream: &mut TcpStream) {
    if let Ok(mut writing) = stream.try_clone()
        && copy(stream, &mut writing).is_ok()
    {
        let _ = writing.flush();
        let _ = writing.shutdown(Shutdown::Write);
    }
}

/// Connects, with a time limit for reads.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    stream
}

/// Resets a connection.
pub(crate) fn reset(stream: TcpStream) {
    let now = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &now).unwrap();
}

/// Returns whether the next event on the stream is a reset.
pub(crate) fn is_reset(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    match stream.read(&mut [0]) {
        Ok(count) => panic!("{count} bytes, or the end of file, instead of a reset"),
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Returns random bytes, the same for the same seed.
pub(crate) fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Returns the largest number of bytes that the kernel holds for one connection.
pub(crate) fn socket_buffers() -> usize {
    let most = |what: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{what}")).unwrap();
        let most = text.split_whitespace().last().unwrap();
        most.parse::<usize>().unwrap()
    };
    most("rmem") + most("wmem")
}

/// Raises the limit of descriptors, for thousands of connections.
pub(crate) fn raise_open_files() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}
