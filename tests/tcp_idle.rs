//! Measures the cost of idle connections over TCP. These tests are a separate program, because they
//! measure the whole process.

use std::{thread, time::Duration};

use common::{apart::run_in_own_process, connect_and_accept, tcp_config};
use rdmsg::{Connector, Endpoint, Engine, Error, Listener};

#[test]
fn a_process_that_only_waits_uses_no_processor() {
    let config = tcp_config();
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind("127.0.0.1:0")
        .unwrap();
    let (client, server) = connect_and_accept(&Connector::new().config(&config), &listener);
    let waiting = thread::spawn(move || server.recv_timeout(Duration::from_secs(2)).map(drop));
    let before = ticks();
    assert!(matches!(waiting.join().unwrap(), Err(Error::TimedOut)));
    let used = ticks() - before;
    assert!(used < 20, "{used} hundredths of a second of processor time");
    drop(client);
}

/// Opens connections, and calls `first` with both ends of each connection. Returns the average
/// memory that both ends of a connection need together, in bytes.
fn memory_of_pair(first: impl Fn(&Endpoint, &Endpoint)) -> u64 {
    const PAIRS: u64 = 50;
    let config = tcp_config();
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind("127.0.0.1:0")
        .unwrap();
    let addr = listener.local_addr();
    let connector = Connector::new().config(&config).engine(&engine);
    let open = || {
        let client = connector.connect(addr).unwrap();
        let server = listener.accept().unwrap();
        first(&client, &server);
        (client, server)
    };
    // Open two connections first, because they allocate memory that all connections share.
    let _before = [open(), open()];
    let before = anonymous_memory();
    let pairs: Vec<_> = (0..PAIRS).map(|_| open()).collect();
    let used = anonymous_memory() - before;
    drop(pairs);
    used / PAIRS
}

/// Returns the anonymous memory of this process, in bytes.
fn anonymous_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn idle_connections_use_little_memory() {
    run_in_own_process("idle_connections_use_little_memory", || {
        let idle = memory_of_pair(|_, _| ());
        assert!((1..=2 * (48 << 10)).contains(&idle), "{idle} bytes");
    });
}

#[test]
fn buffers_of_a_window_stay_in_memory() {
    run_in_own_process("buffers_of_a_window_stay_in_memory", || {
        const WINDOW: usize = 128; // the default over TCP
        let used = memory_of_pair(|client, server| {
            let longest = vec![7; client.info().negotiated.unwrap().send_eager as usize];
            for _ in 0..WINDOW {
                client.send(&longest).unwrap();
            }
            for _ in 0..WINDOW {
                server.recv().unwrap();
            }
        });
        assert!((4 << 20..=9_400_000).contains(&used), "{used} bytes");
    });
}

/// Returns the processor time used by this process, in hundredths of a second.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<_> = rest.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
