//! Tests of the echo servers with 500 clients, one of which does not receive its replies. The tests
//! use TCP, or RDMA if the environment variable `LAB_ADDR` is set to the address of an RDMA device.

use std::{
    env,
    sync::Mutex,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use toolbox::{Line, Process};

/// The time limit for each wait. It is long enough for a host with emulated processors.
const TIME_LIMIT: Duration = Duration::from_secs(120);

const CLIENTS: &str = "500";

/// The receive window: the maximum number of messages of one client that occupy a server's receive
/// buffers.
const WINDOW: u64 = 8;

/// The time in seconds for which all connections stay idle.
const IDLE: u64 = 8;

/// The time in seconds during which the test measures the idle server. It ends well before the
/// clients are no longer idle.
const MEASURED: u64 = 3;

/// The maximum processor time of a server while the connections are idle, in thousandths of one
/// processor. The maximum is five times as high for unoptimised code.
const BUDGET: u64 = if cfg!(debug_assertions) { 50 } else { 10 };

/// The lock that each test holds. Tests must not run concurrently, because they measure processor
/// time and open many connections.
static ALONE: Mutex<()> = Mutex::new(());

/// A running echo server.
struct Server(Process);

/// The statistics that a server prints after SIGUSR1.
#[derive(Debug)]
struct Statistics {
    connections: u64,
    received: u64,
    sent: u64,
    held: u64,
    processor_ms: u64,
}

/// Reads lines until a line starts with `beginning`, and returns that line.
fn line(process: &mut Process, beginning: &str) -> String {
    loop {
        match process.line(TIME_LIMIT) {
            Some(Line::Out(line)) if line.starts_with(beginning) => return line,
            Some(line) => println!("{line:?}"),
            None => panic!("the program must print a line that starts with {beginning:?}"),
        }
    }
}

impl Server {
    fn start(program: &str) -> (Self, String) {
        let host = env::var("LAB_ADDR").unwrap_or_else(|_| "127.0.0.1".into());
        let mut server = Process::start(&[program, &format!("{host}:0")]).unwrap();
        let listening = line(&mut server, "listening on ");
        let (_, address) = listening.split_at("listening on ".len());
        (Self(server), address.to_owned())
    }

    fn statistics(&mut self) -> Statistics {
        self.0.signal(Signal::SIGUSR1).unwrap();
        let line = line(&mut self.0, "connections ");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse().unwrap();
        Statistics {
            connections: number(1),
            received: number(3),
            sent: number(5),
            held: number(7),
            processor_ms: number(9),
        }
    }

    /// Requests statistics until the server has this number of connections, and returns the
    /// statistics.
    fn wait_for(&mut self, connections: u64) -> Statistics {
        let began = Instant::now();
        loop {
            let statistics = self.statistics();
            if statistics.connections == connections {
                return statistics;
            }
            assert!(
                began.elapsed() < TIME_LIMIT,
                "the server must have {connections} connections in time: {statistics:?}"
            );
        }
    }

    fn end(mut self) {
        self.0.signal(Signal::SIGTERM).unwrap();
        line(&mut self.0, "0 connections did not end in time");
        assert!(self.0.finish(TIME_LIMIT).unwrap().succeeded());
    }
}

fn start_clients(address: &str) -> Process {
    let idle = IDLE.to_string();
    let argv = [
        env!("CARGO_BIN_EXE_echo_clients"),
        "-c",
        CLIENTS,
        "--idle",
        &idle,
        address,
    ];
    Process::start(&argv).unwrap()
}

fn serve_many(program: &str) {
    let alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (mut server, address) = Server::start(program);
    let mut clients = start_clients(&address);

    // All clients except one receive their replies. The messages of the remaining client occupy at
    // most `WINDOW` receive buffers of the server.
    line(
        &mut clients,
        "20 rounds over 499 connections, every byte as expected",
    );
    line(&mut clients, "idle");
    let (began, before) = (Instant::now(), server.statistics());
    assert_eq!(before.connections, 500);
    assert!(
        before.received >= 20 * 499,
        "the server must have received all rounds: {before:?}"
    );
    assert!(
        before.received - before.sent <= WINDOW,
        "at most {WINDOW} received messages must be unanswered: {before:?}"
    );
    assert!(
        before.held <= WINDOW,
        "the server must hold at most {WINDOW} messages: {before:?}"
    );

    std::thread::sleep(Duration::from_secs(MEASURED));
    let (elapsed, after) = (began.elapsed(), server.statistics());
    assert_eq!(
        after.received, before.received,
        "the clients must send nothing while they are idle"
    );
    let used = after.processor_ms - before.processor_ms;
    let elapsed = u64::try_from(elapsed.as_millis()).unwrap();
    println!("{used} ms of processor time in {elapsed} ms");
    if env::var_os("LAB_ADDR").is_none() {
        assert!(
            used * 1000 < elapsed * BUDGET,
            "the idle server must use less than {BUDGET}/1000 of a processor: \
             {used} ms in {elapsed} ms"
        );
    } else {
        // This host may have emulated processors, so a fixed limit is not possible. The server must
        // use less processor time in an idle second than it used for 500 messages (one message per
        // connection).
        println!(
            "{} ms for {} messages",
            before.processor_ms, before.received
        );
        let (each, seconds) = (before.processor_ms * 500 / before.received, elapsed / 1000);
        assert!(
            used < each * seconds,
            "the idle server must use less than {each} ms per second: {used} ms in {seconds} s"
        );
    }

    line(&mut clients, "closed: everything was delivered");
    assert!(clients.finish(TIME_LIMIT).unwrap().succeeded());
    let last = server.wait_for(0);
    assert_eq!(last.held, 0);

    // Kill all clients at the same time, so that they do not close their connections.
    let mut clients = start_clients(&address);
    line(&mut clients, "idle");
    let before = server.statistics();
    assert_eq!(before.connections, 500);
    drop(clients.kill().unwrap());
    let after = server.wait_for(0);
    let used = after.processor_ms - before.processor_ms;
    println!("{used} ms of processor time to end 500 connections");
    server.end();
    drop(alone);
}

#[test]
fn with_a_thread_for_each() {
    serve_many(env!("CARGO_BIN_EXE_echo_threads"));
}

#[test]
fn with_a_group() {
    serve_many(env!("CARGO_BIN_EXE_echo_group"));
}

#[test]
fn with_an_event_loop() {
    serve_many(env!("CARGO_BIN_EXE_echo_epoll"));
}
