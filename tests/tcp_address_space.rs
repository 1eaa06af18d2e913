//! Tests of the virtual address space that connections over TCP reserve. Each test runs in a
//! separate process, and limits its address space.

use std::{env, process::Command};

use common::{
    TIME_LIMIT,
    apart::{run_in_own_process, run_in_process_of},
    tcp_config,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rdmsg::{CloseReason, Connector, Endpoint, Engine, Error, Listener};

/// A listener and a connector within this process.
struct Pairs {
    listener: Listener,
    connector: Connector,
}

impl Pairs {
    fn new() -> Self {
        let config = tcp_config();
        let engine = Engine::new().unwrap();
        Self {
            listener: Listener::builder()
                .config(&config)
                .engine(&engine)
                .bind("127.0.0.1:0")
                .unwrap(),
            connector: Connector::new().config(&config).engine(&engine),
        }
    }

    /// Opens a connection, and sends a message in each direction.
    fn open(&self) -> [Endpoint; 2] {
        let client = self.connector.connect(self.listener.local_addr()).unwrap();
        let ends = [client, self.listener.accept().unwrap()];
        for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            from.send(b"message").unwrap();
            assert_eq!(to.recv().unwrap(), b"message"[..]);
        }
        ends
    }
}

/// Returns the size of this process's address space, in bytes.
fn address_space() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').next().unwrap().parse().unwrap();
    pages * 4096
}

/// Calls `action` while the address space is limited to its current size plus `more` bytes.
fn with_limit<T>(more: usize, action: impl FnOnce() -> T) -> T {
    let (_, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    let limit = (address_space() + more) as u64;
    setrlimit(Resource::RLIMIT_AS, limit, hard).unwrap();
    let result = action();
    setrlimit(Resource::RLIMIT_AS, hard, hard).unwrap();
    result
}

#[test]
fn idle_connections_reserve_few_addresses() {
    const CONNECTIONS: usize = 200;
    const MAX_BYTES: usize = 256 << 10;
    // Use one malloc arena, because each further arena reserves address space for a thread.
    let mut command = Command::new(env::current_exe().unwrap());
    command.env("MALLOC_ARENA_MAX", "1");
    run_in_process_of(command, "idle_connections_reserve_few_addresses", || {
        let pairs = Pairs::new();
        let first = pairs.open();
        let before = address_space();
        let all = with_limit(2 * CONNECTIONS * MAX_BYTES, || {
            (0..CONNECTIONS).map(|_| pairs.open()).collect::<Vec<_>>()
        });
        let each = (address_space() - before) / (2 * CONNECTIONS);
        assert!(
            each <= MAX_BYTES,
            "each endpoint reserves {each} B, but at most {MAX_BYTES} B are allowed"
        );
        drop((first, all));
    });
}

#[test]
fn connection_ends_without_address_space_for_message() {
    run_in_own_process("connection_ends_without_address_space_for_message", || {
        let pairs = Pairs::new();
        let [client, server] = pairs.open();
        let payload = [7; 2000];
        let received = with_limit(0, || {
            for _ in 0..3 {
                client.send(&payload).unwrap();
            }
            // Hold the messages, so that no receive buffer is free for later messages.
            let mut held = Vec::new();
            loop {
                match server.recv_timeout(TIME_LIMIT) {
                    Ok(message) => held.push(message),
                    Err(error) => break (held.len(), error),
                }
            }
        });
        let (2, Error::Disconnected(CloseReason::Os(error))) = received else {
            panic!("{received:?}");
        };
        assert_eq!((error.call, error.errno), ("mmap", libc::ENOMEM));
    });
}
