//! Helpers that create child processes, and helpers that create both ends of a connection in one
//! process.

use std::{
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
};

pub(crate) use common::{TIME_LIMIT, connector, is_rdma, local_ip};
use common::{apart, connect_and_accept, with_time_to_connect};
use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, Pid, alarm, fork},
};
use rdmsg::{CloseReason, Config, Endpoint, Error, Listener};

/// The maximum lifetime of a child in seconds. An alarm kills a child that lives longer, so its
/// test fails.
const LIFETIME: u32 = 60;

/// Returns a configuration that gives a connect enough time on a busy machine.
pub(crate) fn config() -> Config {
    with_time_to_connect(&Config::default())
}

pub(crate) fn bind() -> Listener {
    let builder = Listener::builder().config(&config());
    builder.bind((local_ip(), 0)).unwrap()
}

/// Connects to a listener in this process. Returns both ends, the connecting end first.
pub(crate) fn pair(listener: &Listener) -> (Endpoint, Endpoint) {
    connect_and_accept(&connector(), listener)
}

/// Sends and receives a message in each direction.
#[track_caller]
pub(crate) fn exchange(one: &Endpoint, other: &Endpoint) {
    for (from, to) in [(one, other), (other, one)] {
        from.send(b"as before").unwrap();
        assert_eq!(*to.recv_timeout(TIME_LIMIT).unwrap(), *b"as before");
    }
}

/// Connects, sends a question, and returns the answer.
#[track_caller]
pub(crate) fn ask(address: SocketAddr, question: &[u8]) -> Vec<u8> {
    let endpoint = connector().connect(address).unwrap();
    endpoint.send(question).unwrap();
    let answer = endpoint.recv_timeout(TIME_LIMIT).unwrap().into_vec();
    endpoint.close().unwrap();
    answer
}

/// Accepts a connection, replies to its first message, and returns that message.
#[track_caller]
pub(crate) fn answer(listener: &Listener, with: &[u8]) -> Vec<u8> {
    let endpoint = listener.accept_timeout(TIME_LIMIT).unwrap();
    let question = endpoint.recv_timeout(TIME_LIMIT).unwrap().into_vec();
    endpoint.send(with).unwrap();
    let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
    assert!(
        matches!(end, Error::Disconnected(CloseReason::PeerClosed)),
        "{end:?}"
    );
    question
}

/// A child of this process, identified by the child's process id.
pub(crate) struct Forked(pub(crate) Pid);

/// Forks a child that runs `body` and then exits. The exit status is 0 if `body` returns, and 101
/// if `body` panics.
pub(crate) fn forked(body: impl FnOnce()) -> Forked {
    // SAFETY: the system's allocator works in a forked child of a multithreaded process. Apart from
    // the allocator, the child runs only code of the test and of this library. The tests check that
    // this code works in a forked child.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => Forked(child),
        ForkResult::Child => {
            alarm::set(LIFETIME);
            // Ignore the payload of a panic, because the panic hook has already printed it.
            let ran = catch_unwind(AssertUnwindSafe(body));
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(if ran.is_ok() { 0 } else { 101 }) }
        }
    }
}

impl Forked {
    /// Waits until the child has ended. Asserts that it exited with status 0.
    #[track_caller]
    pub(crate) fn assert_success(self) {
        assert_eq!(
            waitpid(self.0, None).unwrap(),
            WaitStatus::Exited(self.0, 0)
        );
    }
}

/// Runs a test in a separate process, so that its children do not inherit the objects and locks of
/// other tests. `name` is the name of the test in its module.
pub(crate) fn run_in_own_process(module: &str, name: &str, body: impl FnOnce()) {
    let (_, module) = module.split_once("::").unwrap();
    apart::run_in_own_process(&format!("{module}::{name}"), body);
}

#[track_caller]
pub(crate) fn assert_forked(error: &Error) {
    let names_fork = matches!(
        error,
        Error::Forked | Error::Disconnected(CloseReason::Forked)
    );
    assert!(
        names_fork && error.to_string().contains("fork"),
        "{error:?}"
    );
}
