//! Measures the memory of an idle connection. This test is a separate program. In a program with
//! other tests, connections would reuse memory that the other tests have freed, and the growth
//! would be hidden.

use std::{
    fs,
    io::{self, Write},
    thread,
};

use rdmsg::{Config, Connector, Endpoint, Engine, Listener};
use toolbox::{DeviceTest, TIME_LIMIT, patient};

const CONNECTIONS: u32 = 200;

/// The number of shared receive buffers that are reserved for each connection.
const SHARE: u32 = 17;

/// Returns a configuration for a server with many connections and short messages.
fn sharing() -> Config {
    let mut config = patient();
    config.shared_receive = Some((2 * CONNECTIONS + 10) * SHARE);
    config.receive_window = Some(16);
    config.send_depth = Some(16);
    config.eager_size = Some(1024);
    config
}

/// Returns the value of the line that starts with `name` in /proc/self/status, in bytes.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line
        .unwrap()
        .trim_start_matches(':')
        .trim()
        .trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

/// Returns the resident memory of this process in bytes: the anonymous memory and the mapped queues
/// of the device. Code is not counted, because the kernel loads more code while the program runs.
fn resident() -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_of_device = false;
    let mut queues = 0;
    for line in maps.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["Rss:", kib, "kB"] if is_of_device => queues += kib.parse::<u64>().unwrap() * 1024,
            [range, ..] if !range.ends_with(':') => is_of_device = line.contains("/dev/infiniband"),
            _ => {}
        }
    }
    assert!(queues > 0, "the device's queues must be mapped");
    status("RssAnon") + queues
}

#[test]
fn an_idle_connection_costs_little_memory() {
    let lab = DeviceTest::start();
    let engine = Engine::new().unwrap();
    let config = sharing();
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind(lab.at(0))
        .unwrap();
    let address = listener.local_addr();
    let connect = |count: u32| -> Vec<(Endpoint, Endpoint)> {
        let connector = Connector::new().config(&config).engine(&engine);
        let clients = thread::spawn(move || -> Vec<Endpoint> {
            (0..count)
                .map(|_| connector.connect(address).unwrap())
                .collect()
        });
        let servers: Vec<_> = (0..count)
            .map(|_| listener.accept_timeout(TIME_LIMIT).unwrap())
            .collect();
        // The order of the servers can differ from the order of the clients, which does not matter
        // here.
        clients.join().unwrap().into_iter().zip(servers).collect()
    };
    // The first connections create the buffer pool and other objects that exist until the process
    // ends.
    let first = connect(4);
    let before = (resident(), status("VmPin"));
    let idle = connect(CONNECTIONS);
    let after = (resident(), status("VmPin"));
    let each = |before: u64, after: u64| after.saturating_sub(before) / u64::from(2 * CONNECTIONS);
    let (resident, pinned) = (each(before.0, after.0), each(before.1, after.1));
    let share = u64::from(SHARE) * (1024 + 64);
    // Write to stderr, because the test harness captures the output of `println!`.
    let _ = writeln!(
        io::stderr(),
        "each end of an idle connection uses {resident} bytes of resident memory, {pinned} of them \
         pinned, and {share} bytes of shared receive buffers"
    );
    // On iWARP, both sides have allocated send buffers, because both send a frame when they
    // connect. The resident memory varies by 700 bytes between boots, even for the same build.
    let most = if lab.is_iwarp() { 80 << 10 } else { 69 << 10 };
    assert!(
        resident + share <= most,
        "an end must use at most {most} bytes, not {resident} + {share}"
    );
    for (client, server) in first.iter().chain(&idle) {
        client.send(b"still there").unwrap();
        server.send(b"still there").unwrap();
    }
    for (client, server) in first.iter().chain(&idle) {
        assert_eq!(&*client.recv_timeout(TIME_LIMIT).unwrap(), b"still there");
        assert_eq!(&*server.recv_timeout(TIME_LIMIT).unwrap(), b"still there");
    }
}
