//! Tests of processes that give up root privileges. If a process gives up its privileges before it
//! first uses the library, its connections work. If a process gives up its privileges later, its
//! connections continue over TCP. Over RDMA, in the lab, the kernel then refuses calls on
//! descriptors that root opened, and the engine ends with an error that contains the remedy.

use std::{
    env,
    io::{BufRead, BufReader, Write, stdin},
    net::SocketAddr,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Mutex,
};

use common::{TIME_LIMIT, connector, is_rdma, local_ip};
use log::{LevelFilter, Log, Metadata, Record};
use nix::unistd::{Gid, Uid, geteuid, setgid, setuid};
use rdmsg::{CloseReason, Endpoint, Error, Listener, Transport};

/// The uid of an unprivileged user, which the tests also use as the gid.
const UNPRIVILEGED_UID: u32 = 65534;

/// The maximum number of warnings and errors that the library may log in each process.
const MAX_LINES: usize = 30;

const REMEDY: &str = "change them before";

/// A logger that counts and prints warnings and errors.
struct Lines(Mutex<usize>);

static LINES: Lines = Lines(Mutex::new(0));

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        *self.0.lock().unwrap() += 1;
        eprintln!("{} {}", record.level(), record.args());
    }

    fn flush(&self) {}
}

/// A process that runs one of the ignored tests of this program. The name of that test is the role
/// of the process.
struct Role {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Role {
    /// Starts a process in the role `name`. Returns the process, and the address on which the
    /// process listens.
    fn start(name: &str) -> (Self, SocketAddr) {
        assert!(
            geteuid().is_root(),
            "the test must run as root, because only root can give up its rights"
        );
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", name, "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut this = Self { child, stdout };
        let address = this.wait_for("address ").parse().unwrap();
        (this, address)
    }

    /// Waits for a line that contains `begin`, and returns the text after `begin`.
    fn wait_for(&mut self, begin: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.stdout.read_line(&mut line).unwrap(),
                0,
                "the role ended before it printed {begin}"
            );
            // The line can begin with output of the test harness.
            if let Some((_, rest)) = line.split_once(begin) {
                return rest.trim().to_owned();
            }
        }
    }

    fn send_continue(&mut self) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        stdin.write_all(b"go on\n").unwrap();
    }

    fn assert_success(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for_continue() {
    assert_ne!(stdin().read_line(&mut String::new()).unwrap(), 0);
}

/// Installs the logger, binds a listener, and prints the listener's address. Every role calls this
/// function.
fn bind() -> Listener {
    log::set_logger(&LINES).unwrap();
    log::set_max_level(LevelFilter::Warn);
    let listener = Listener::bind((local_ip(), 0)).unwrap();
    println!("address {}", listener.local_addr());
    listener
}

fn give_up_rights() {
    setgid(Gid::from_raw(UNPRIVILEGED_UID)).unwrap();
    setuid(Uid::from_raw(UNPRIVILEGED_UID)).unwrap();
}

/// Asserts that the library has logged at most `MAX_LINES` lines. A role calls this function at its
/// end.
fn count_lines() {
    let lines = *LINES.0.lock().unwrap();
    assert!(
        lines <= MAX_LINES,
        "the library logged {lines} lines, but at most {MAX_LINES} are allowed"
    );
}

fn echo(endpoint: &Endpoint) {
    let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
    endpoint.send(&message).unwrap();
}

fn assert_echo(endpoint: &Endpoint) {
    endpoint.send(b"once").unwrap();
    assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"once");
}

#[test]
#[ignore = "a program that another test runs"]
fn role_binds_before_giving_up_rights() {
    let listener = bind();
    give_up_rights();
    println!("gave up");
    let accepted = listener.accept_timeout(TIME_LIMIT);
    if !is_rdma() {
        let endpoint = accepted.unwrap();
        echo(&endpoint);
        endpoint.close().unwrap();
        return count_lines();
    }
    let error = accepted.unwrap_err();
    let is_end = matches!(
        error,
        Error::ListenerEnded {
            reason: CloseReason::Os(_),
            ..
        }
    );
    assert!(is_end && error.to_string().contains(REMEDY), "{error}");
    let again = listener.accept().unwrap_err();
    assert_eq!(
        again.to_string(),
        error.to_string(),
        "a later call must return the same error"
    );
    drop(listener);
    // This listener has a new engine with its own descriptors.
    let listener = Listener::bind((local_ip(), 0)).unwrap();
    println!("again {}", listener.local_addr());
    let endpoint = listener.accept_timeout(TIME_LIMIT).unwrap();
    assert_eq!(endpoint.info().transport, Transport::Rdma);
    echo(&endpoint);
    let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
    assert!(
        matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
        "{end}"
    );
    count_lines();
}

#[test]
fn listener_goes_on_over_tcp_and_ends_once_over_rdma() {
    let (mut role, address) = Role::start("role_binds_before_giving_up_rights");
    role.wait_for("gave up");
    if is_rdma() {
        let error = Endpoint::connect(address).unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        let again = role.wait_for("again ").parse::<SocketAddr>().unwrap();
        let endpoint = connector().connect(again).unwrap();
        assert_echo(&endpoint);
        endpoint.close().unwrap();
    } else {
        let endpoint = connector().connect(address).unwrap();
        assert_echo(&endpoint);
    }
    role.assert_success();
}

#[test]
#[ignore = "a program that another test runs"]
fn role_accepts_before_giving_up_rights() {
    let listener = bind();
    let endpoint = listener.accept_timeout(TIME_LIMIT).unwrap();
    echo(&endpoint);
    give_up_rights();
    println!("gave up");
    wait_for_continue();
    if is_rdma() {
        // The first sends can succeed, because the library posts them before the engine fails.
        let end = (0..1000)
            .find_map(|_| endpoint.send(&[7; 3000]).err())
            .unwrap();
        assert!(end.to_string().contains(REMEDY), "{end}");
        let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
        assert!(end.to_string().contains(REMEDY), "{end}");
        assert!(endpoint.close().is_err());
    } else {
        echo(&endpoint);
    }
    drop((endpoint, listener));
    count_lines();
}

#[test]
fn connection_goes_on_over_tcp_and_ends_over_rdma() {
    let (mut role, address) = Role::start("role_accepts_before_giving_up_rights");
    let endpoint = connector().connect(address).unwrap();
    assert_echo(&endpoint);
    role.wait_for("gave up");
    role.send_continue();
    if is_rdma() {
        while endpoint.recv_timeout(TIME_LIMIT).is_ok() {}
        let reason = endpoint.info().close_reason;
        assert!(
            reason.is_some(),
            "the connection must end on this side, too"
        );
    } else {
        assert_echo(&endpoint);
    }
    role.assert_success();
}

#[test]
#[ignore = "a program that another test runs"]
fn role_gives_up_rights_first() {
    give_up_rights();
    let listener = bind();
    let endpoint = listener.accept_timeout(TIME_LIMIT).unwrap();
    echo(&endpoint);
    let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
    assert!(
        matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
        "{end}"
    );
}

#[test]
fn process_without_privileges_works() {
    let (role, address) = Role::start("role_gives_up_rights_first");
    let endpoint = connector().connect(address).unwrap();
    assert_echo(&endpoint);
    endpoint.close().unwrap();
    role.assert_success();
}
