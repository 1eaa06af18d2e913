//! Tests that a program delivers its messages before it exits, and exits without unnecessary delay.
//! Each such program is called a role. A role is an ignored test of this file. Another test runs
//! the role in a separate process.

use std::{
    env,
    net::SocketAddr,
    process::{self, Child, Command, Output, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use log::{LevelFilter, Log, Metadata, Record};
use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, fork},
};
use rdmsg::{CloseReason, Config, Connector, Endpoint, Engine, Listener};
use toolbox::{DeviceTest, Lab, TIME_LIMIT, connect, patient, pattern, reason};

/// The environment variable that contains the address to which a role connects.
const PEER: &str = "EXITS_PEER";

/// A timeout that exceeds every wait in these tests.
const NEVER: Duration = Duration::from_secs(600);

/// The length in bytes of a long message. Its role returns or exits immediately after the send.
const LONG: usize = 6_000_000;

/// The length in bytes of each of four messages, whose total length is [`LONG`].
const QUARTER: usize = LONG / 4;

/// Starts a role in a new process. Dropping the returned value kills the process.
fn start(role: &str, peer: SocketAddr) -> Role {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", role, "--nocapture"])
        .arg("--test-threads=1")
        .env(PEER, peer.to_string())
        .env("RUST_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Role(Some(child))
}

struct Role(Option<Child>);

impl Role {
    /// Waits until the role has ended; the test's watchdog limits this wait. Returns the process's
    /// [`Output`], and the concatenation of its stdout and stderr.
    fn end(mut self) -> (Output, String) {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        (output, String::from_utf8_lossy(&said).into_owned())
    }

    fn succeed(self) -> String {
        let (output, said) = self.end();
        assert!(output.status.success(), "{}: {said}", output.status);
        said
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn peer() -> SocketAddr {
    env::var(PEER)
        .expect("the test that starts a role must set the variable")
        .parse()
        .unwrap()
}

fn connector(close_timeout: Duration) -> Connector {
    let mut config = Config::default();
    config.connect_timeout = TIME_LIMIT;
    config.close_timeout = close_timeout;
    // Without keepalive, only `close_timeout` can end the connection.
    config.keepalive_interval = None;
    Connector::new().config(&config)
}

/// Returns a connector whose `close_timeout` is long enough for a busy machine.
fn long_timeouts() -> Connector {
    let mut config = patient();
    config.close_timeout = TIME_LIMIT;
    Connector::new().config(&config)
}

fn listen(config: &Config) -> Listener {
    Listener::builder()
        .config(config)
        .bind(Lab::get().at(0))
        .unwrap()
}

// The roles. Most roles return, and then `main` returns. The names of the other roles state how
// their processes end.

#[test]
#[ignore = "a program that other tests run"]
fn role_sends_four_drops_and_returns() {
    let endpoint = long_timeouts().connect(peer()).unwrap();
    for number in 0..4 {
        endpoint.send(&pattern(number, QUARTER)).unwrap();
    }
}

#[test]
#[ignore = "a program that other tests run"]
fn role_sends_one_drops_and_returns() {
    let endpoint = long_timeouts().connect(peer()).unwrap();
    endpoint.send(&pattern(0, LONG)).unwrap();
}

#[test]
#[ignore = "a program that other tests run"]
fn role_sends_on_dropped_engine_and_calls_exit() {
    let engine = Engine::new().unwrap();
    let endpoint = long_timeouts().engine(&engine).connect(peer()).unwrap();
    endpoint.send(&pattern(0, LONG)).unwrap();
    drop((endpoint, engine));
    process::exit(0);
}

#[test]
#[ignore = "a program that other tests run"]
fn role_sends_one_and_returns_without_dropping() {
    static KEPT: OnceLock<Endpoint> = OnceLock::new();
    let endpoint = KEPT.get_or_init(|| long_timeouts().connect(peer()).unwrap());
    endpoint.send(&pattern(0, LONG)).unwrap();
}

#[test]
#[ignore = "a program that other tests run"]
fn role_sends_to_a_peer_that_never_reads() {
    let _lab = Lab::get();
    let endpoint = connector(Duration::from_secs(1)).connect(peer()).unwrap();
    for number in 0..4 {
        endpoint.send(&pattern(number, QUARTER)).unwrap();
    }
}

#[test]
#[ignore = "a program that other tests run"]
fn role_sends_large_messages_until_it_is_killed() {
    let endpoint = connector(NEVER).connect(peer()).unwrap();
    let message = pattern(0, 1_000_000);
    loop {
        endpoint.send(&message).unwrap();
    }
}

#[test]
#[ignore = "a program that other tests run"]
fn role_listens_and_returns() {
    let mut config = Config::default();
    config.close_timeout = NEVER;
    let engine = Engine::new().unwrap();
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind((peer().ip(), 0))
        .unwrap();
    // Leak the listener, so that it exists until the process ends.
    let _leaked = Box::leak(Box::new(listener));
}

#[test]
#[ignore = "a program that other tests run"]
fn role_has_an_idle_connection_and_returns() {
    let endpoint = connector(NEVER).connect(peer()).unwrap();
    let _leaked = Box::leak(Box::new(endpoint));
}

#[test]
#[ignore = "a program that other tests run"]
fn role_leaves_a_request_unanswered_and_returns() {
    let engine = Engine::shared().unwrap();
    let listener = Listener::builder()
        .engine(&engine)
        .bind_requests(Lab::get().at(0));
    let listener = listener.unwrap();
    let client = connector(NEVER).connect(peer()).unwrap();
    client
        .send(listener.local_addr().to_string().as_bytes())
        .unwrap();
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    let _leaked = Box::leak(Box::new((listener, client, request)));
}

#[test]
#[ignore = "a program that other tests run"]
fn role_leaves_a_connection_unaccepted_and_returns() {
    let listener = listen(&patient());
    let client = connector(NEVER).connect(peer()).unwrap();
    client
        .send(listener.local_addr().to_string().as_bytes())
        .unwrap();
    client.recv().unwrap();
    let _leaked = Box::leak(Box::new((listener, client)));
}

/// A logger that exits the process at the first matching line about a connection. If `in_engine` is
/// true, only lines from engine threads match. If it is false, only lines from other threads match.
struct Exit {
    in_engine: bool,
    armed: AtomicBool,
}

impl Log for Exit {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // On a busy machine, a relief thread may have become the engine's thread.
        let in_engine = matches!(
            thread::current().name(),
            Some("rdmsg-engine" | "rdmsg-relief")
        );
        if in_engine == self.in_engine
            && record.target() == "rdmsg::connection"
            && record.file().is_some_and(|file| file.contains("src/link/"))
            && self.armed.swap(false, Ordering::SeqCst)
        {
            process::exit(7);
        }
    }

    fn flush(&self) {}
}

static IN_ENGINE: Exit = Exit {
    in_engine: true,
    armed: AtomicBool::new(true),
};

static IN_APPLICATION: Exit = Exit {
    in_engine: false,
    armed: AtomicBool::new(true),
};

#[test]
#[ignore = "a program that other tests run"]
fn role_exits_in_the_engines_thread() {
    let _other = connector(NEVER).connect(peer()).unwrap();
    log::set_logger(&IN_ENGINE).unwrap();
    log::set_max_level(LevelFilter::Trace);
    loop {
        // The engine logs the end of the dropped connection, because no other thread polls this
        // connection.
        drop(connector(NEVER).connect(peer()).unwrap());
    }
}

#[test]
#[ignore = "a program that other tests run"]
fn role_exits_in_a_logger_of_its_own_thread() {
    log::set_logger(&IN_APPLICATION).unwrap();
    log::set_max_level(LevelFilter::Trace);
    // This thread logs the close, so the logger exits the process in this thread.
    let connector = connector(Duration::from_secs(1));
    let _ = connector.connect(peer()).unwrap().close();
}

// The tests that start the roles.

#[test]
fn messages_sent_before_program_exit_arrive() {
    let _test = DeviceTest::within(600);
    let listener = listen(&patient());
    let roles = [
        ("role_sends_four_drops_and_returns", 4, QUARTER),
        ("role_sends_one_drops_and_returns", 1, LONG),
        ("role_sends_on_dropped_engine_and_calls_exit", 1, LONG),
        ("role_sends_one_and_returns_without_dropping", 1, LONG),
    ];
    for run in 0..2 {
        for (role, count, len) in roles {
            let child = start(role, listener.local_addr());
            let server = listener.accept_timeout(TIME_LIMIT).unwrap();
            for number in 0..count {
                let message = server
                    .recv_timeout(TIME_LIMIT)
                    .unwrap_or_else(|error| panic!("run {run} of {role}: {number}: {error}"));
                assert!(*message == pattern(number, len), "run {run} of {role}");
            }
            assert_eq!(
                reason(server.recv_timeout(TIME_LIMIT)),
                CloseReason::PeerClosed,
                "run {run} of {role}"
            );
            child.succeed();
        }
    }
}

#[test]
fn sender_killed_during_read_is_no_violation() {
    let _test = DeviceTest::within(600);
    let listener = listen(&patient());
    for run in 0..4 {
        let child = start(
            "role_sends_large_messages_until_it_is_killed",
            listener.local_addr(),
        );
        let server = listener.accept_timeout(TIME_LIMIT).unwrap();
        for _ in 0..=run {
            server.recv_timeout(TIME_LIMIT).unwrap();
        }
        // The next message is in flight when the role is killed.
        drop(child);
        let end = loop {
            match server.recv_timeout(TIME_LIMIT) {
                Ok(_) => {}
                end => break reason(end),
            }
        };
        assert_eq!(end, CloseReason::PeerDisconnected, "run {run}");
    }
}

#[test]
fn program_exit_reports_undelivered_messages() {
    let _test = DeviceTest::start();
    let mut config = patient();
    // The first message stays unread and uses up `large_memory`, so the library cannot read the
    // second message.
    config.large_memory = 64 << 10;
    let listener = listen(&config);
    let child = start(
        "role_sends_to_a_peer_that_never_reads",
        listener.local_addr(),
    );
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let said = child.succeed();
    assert!(
        said.contains(&format!(
            "to {}: closed without confirmation, sent messages may be lost",
            listener.local_addr()
        )) && said.contains("did not confirm them within close_timeout (1s)"),
        "{said}"
    );
    drop(server);
}

#[test]
fn program_without_pending_sends_ends_at_once() {
    let _test = DeviceTest::start();
    let listener = listen(&patient());
    // These roles have a `close_timeout` above the watchdog's limit. A role that waits for this
    // timeout therefore fails the test.
    start("role_listens_and_returns", listener.local_addr()).succeed();
    let child = start(
        "role_has_an_idle_connection_and_returns",
        listener.local_addr(),
    );
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let said = child.succeed();
    assert!(!said.contains("may be lost"), "{said}");
    assert_eq!(
        reason(server.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
}

#[test]
fn exit_rejects_pending_requests() {
    let _test = DeviceTest::start();
    let listener = listen(&patient());
    let child = start(
        "role_leaves_a_request_unanswered_and_returns",
        listener.local_addr(),
    );
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let message = server.recv_timeout(TIME_LIMIT).unwrap();
    let address: SocketAddr = str::from_utf8(&message).unwrap().parse().unwrap();
    let mut config = Config::default();
    config.connect_timeout = Duration::from_secs(300);
    let error = Connector::new().config(&config).connect(address);
    assert_eq!(
        reason(error),
        CloseReason::PeerBusy,
        "the exit must reject the pending request immediately"
    );
    child.succeed();
}

#[test]
fn exit_closes_unaccepted_connections() {
    let _test = DeviceTest::start();
    let listener = listen(&patient());
    let child = start(
        "role_leaves_a_connection_unaccepted_and_returns",
        listener.local_addr(),
    );
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let message = server.recv_timeout(TIME_LIMIT).unwrap();
    let address: SocketAddr = str::from_utf8(&message).unwrap().parse().unwrap();
    let client = connect(address).unwrap();
    client.send(b"never processed").unwrap();
    client.flush().unwrap();
    server.send(b"return").unwrap();
    assert_eq!(
        reason(client.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerBusy
    );
    child.succeed();
}

#[test]
fn forked_child_exit_keeps_parents_connections() {
    let _test = DeviceTest::start();
    let listener = listen(&patient());
    let address = listener.local_addr();
    let client = thread::spawn(move || connector(NEVER).connect(address).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let client = client.join().unwrap();

    // SAFETY: the child calls only `exit`. The test checks that the library's exit handlers are
    // safe in a forked child of a multithreaded process.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => process::exit(9),
        ForkResult::Parent { child } => {
            // The watchdog limits this wait.
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 9));
        }
    }
    client.send(b"after the fork").unwrap();
    assert_eq!(
        *server.recv_timeout(TIME_LIMIT).unwrap(),
        *b"after the fork"
    );
    client.close().unwrap();
}

#[test]
fn program_may_exit_in_engine_thread_or_logger() {
    let _test = DeviceTest::start();
    let listener = listen(&patient());
    let address = listener.local_addr();
    thread::scope(|scope| {
        let shutdown = ShutdownGuard;
        scope.spawn(|| {
            // A role closes or breaks each of these connections. In both cases, `recv` returns.
            while let Ok(server) = listener.accept() {
                scope.spawn(move || server.recv());
            }
        });
        for role in [
            "role_exits_in_the_engines_thread",
            "role_exits_in_a_logger_of_its_own_thread",
        ] {
            let (output, said) = start(role, address).end();
            assert_eq!(output.status.code(), Some(7), "{role}: {said}");
        }
        drop(shutdown);
    });
}

/// Shuts down the shared engine when dropped, so that its listeners end even if a test fails.
struct ShutdownGuard;

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        Engine::shared().unwrap().shutdown();
    }
}
