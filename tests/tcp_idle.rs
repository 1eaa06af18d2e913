//! What connections over TCP cost while nothing happens. By itself: it measures its process.

use std::{thread, time::Duration};

use rdmsg::{Config, Connector, Engine, Error, Listener, Transport};

#[test]
fn a_process_that_only_waits_uses_no_processor() {
    let mut config = Config::default();
    config.transport = Transport::Tcp;
    let engine = Engine::new().unwrap();
    let listener = Listener::bind_with("127.0.0.1:0", &config, &engine).unwrap();
    let addr = listener.local_addr();
    let server = thread::spawn(move || listener.accept().unwrap());
    let client = Connector::new().config(config).connect(addr).unwrap();
    let server = server.join().unwrap();
    let waiting = thread::spawn(move || server.recv_timeout(Duration::from_secs(2)).map(drop));
    let before = ticks();
    assert!(matches!(waiting.join().unwrap(), Err(Error::TimedOut)));
    let used = ticks() - before;
    assert!(used < 20, "{used} hundredths of a second of processor time");
    drop(client);
}

/// The processor time of this process so far, in hundredths of a second.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<_> = rest.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
