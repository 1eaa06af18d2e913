//! What the device tests share. They run in the lab, or on a machine with an RDMA device: see `integration/test`.
//!
//! A test that finds no device fails. Every wait is bounded: by the library's own timeouts, and by a watchdog that ends a test
//! program which hangs all the same.

mod health;
mod side;

use std::{
    env, fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    process,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use rdmsg::{CloseReason, Config, Connector, Endpoint, Engine, Error, Listener};

pub use crate::{health::Health, side::Side};

/// Longer than anything should take that a test waits for, even where each instruction is emulated.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Where the test runs.
#[derive(Debug, Clone)]
pub struct Lab {
    /// This host's name: `a`, or `b` where there are two.
    pub host: String,
    /// The RDMA device's name.
    pub device: String,
    /// This host's address.
    pub addr: IpAddr,
    /// The other host's address; this host's own where there is one.
    pub peer: IpAddr,
    /// This host's IPv6 address.
    pub addr6: IpAddr,
    /// The other host's IPv6 address; this host's own where there is one.
    pub peer6: IpAddr,
}

impl Lab {
    /// Reads the lab's environment and makes sure that there is a device.
    ///
    /// # Panics
    ///
    /// Without a device: there is nothing to test then, and no test may pass.
    #[must_use]
    pub fn get() -> Self {
        // What goes wrong behind a test's back is shown with it; RUST_LOG shows more.
        let _ = env_logger::builder().is_test(true).try_init();
        let var = |name: &str| {
            env::var(name).unwrap_or_else(|_| {
                panic!("{name} is not set: run the device tests with integration/test")
            })
        };
        let addr = |name| {
            var(name)
                .parse()
                .unwrap_or_else(|_| panic!("{name} is not an address"))
        };
        let device = var("LAB_DEV");
        assert!(
            Path::new("/sys/class/infiniband").join(&device).exists(),
            "there is no RDMA device {device}: run the device tests with integration/test"
        );
        Self {
            host: var("LAB_HOST"),
            device,
            addr: addr("LAB_ADDR"),
            peer: addr("LAB_PEER"),
            addr6: addr("LAB_ADDR6"),
            peer6: addr("LAB_PEER6"),
        }
    }

    /// This host's address with a port; port 0 takes a free one.
    #[must_use]
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.addr, port)
    }

    /// The other host's address with a port.
    #[must_use]
    pub fn peer_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.peer, port)
    }

    /// A hardware counter of the device, for instance `send_rnr_err`.
    ///
    /// # Panics
    ///
    /// When the device has no such counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let path = format!(
            "/sys/class/infiniband/{}/ports/1/hw_counters/{name}",
            self.device
        );
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{path}: {text}"))
    }

    /// How often a receiver had no receive posted, as far as this device knows, on either side of the connection.
    #[must_use]
    pub fn rnr_naks(&self) -> u64 {
        self.counter("rcvd_rnr_err") + self.counter("send_rnr_err")
    }

    /// What exists on the device, as `rdma resource show` counts it.
    ///
    /// # Panics
    ///
    /// When the command fails.
    #[must_use]
    pub fn resources(&self) -> String {
        let output = process::Command::new("rdma")
            .args(["resource", "show", &self.device])
            .output()
            .unwrap_or_else(|error| panic!("rdma resource show: {error}"));
        assert!(
            output.status.success(),
            "rdma resource show: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// Two ends of a connection from this host to itself, on the shared engine: the one that connected and the one that accepted.
///
/// # Panics
///
/// When there is no connection.
#[must_use]
pub fn pair_with(config: &Config) -> (Endpoint, Endpoint) {
    let engine = Engine::shared().expect("there is an engine");
    let listener = Listener::bind_with(Lab::get().at(0), config, &engine).expect("it listens");
    let address = listener.local_addr();
    let connector = Connector::new().config(config.clone());
    let client = thread::spawn(move || connector.connect(address).expect("it connects"));
    let server = listener.accept_timeout(PATIENCE).expect("it accepts");
    (client.join().expect("it does not panic"), server)
}

/// As [`pair_with`], with the default configuration.
#[must_use]
pub fn pair() -> (Endpoint, Endpoint) {
    pair_with(&Config::default())
}

/// Why a connection has ended, as a call on it says.
///
/// # Panics
///
/// When the call did not fail, or for another reason.
pub fn reason(result: Result<impl std::fmt::Debug, Error>) -> CloseReason {
    match result.expect_err("the connection has ended") {
        Error::Disconnected(reason)
        | Error::Connect { reason, .. }
        | Error::Undelivered(reason) => reason,
        other => panic!("not the end of a connection: {other:?}"),
    }
}

/// Bytes to recognise a message by: number, length and place all matter.
#[must_use]
pub fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut state = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ len as u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// How many file descriptors this process has open.
///
/// # Panics
///
/// Without /proc.
#[must_use]
pub fn open_fds() -> usize {
    fs::read_dir("/proc/self/fd")
        .expect("/proc is mounted")
        .count()
}

/// Ends the test program when it is not dropped in time: a hang is a failure that says where.
#[derive(Debug)]
pub struct Watchdog {
    _stop: Sender<()>,
}

impl Watchdog {
    /// Gives what follows `seconds`, generous: the lab is slow.
    #[must_use]
    pub fn new(what: &'static str, seconds: u64) -> Self {
        let (stop, stopped) = channel::<()>();
        thread::spawn(move || {
            if stopped.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout)
            {
                eprintln!("{what}: still not done after {seconds} s");
                process::abort();
            }
        });
        Self { _stop: stop }
    }
}
