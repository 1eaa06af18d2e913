//! Tests with peers over TCP that send one part of a frame immediately, and the rest slowly or
//! never, while threads wait for the rest.
#![allow(unsafe_code)]

use std::{
    fs,
    net::Shutdown,
    os::{fd::IntoRawFd, unix::net::UnixStream, unix::thread::JoinHandleExt},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use common::{
    TIME_LIMIT,
    tcp_peer::{Peer, Stage, frame, pdu},
};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rdmsg::{CloseReason, Completion, Config, Endpoint, Error, Polling, TransportChoice};

/// The keepalive timeout in tests that wait for it to expire.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum payload of a frame, in bytes.
const LONG: usize = 1 << 20;

fn config() -> Config {
    let mut config = Config::default();
    config.transport = TransportChoice::Tcp;
    config.polling = Polling::Event;
    config.receive_window = Some(4);
    config.eager_size = Some(LONG as u32);
    config.max_message = 4 << 20;
    config.keepalive_interval = Some(Duration::from_millis(100));
    config.keepalive_timeout = 10 * TIME_LIMIT;
    config
}

fn stage() -> Stage {
    Stage::with(config())
}

/// Returns a frame with a payload of `len` bytes in two parts: the part that the peer sends
/// immediately, and the last `missing` bytes.
fn split_frame(len: usize, missing: usize) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = pdu(1, 0, &frame(0, &vec![7; len]));
    let rest = bytes.split_off(bytes.len() - missing);
    (bytes, rest)
}

/// Sends `bytes` from the peer one by one, at the interval `every`. Stops when the returned handle
/// is dropped.
fn trickle(mut peer: Peer, bytes: Vec<u8>, every: Duration) -> mpsc::Sender<()> {
    let (handle, dropped) = mpsc::channel();
    thread::spawn(move || {
        for byte in bytes {
            peer.send(&[byte]);
            if dropped.recv_timeout(every) != Err(mpsc::RecvTimeoutError::Timeout) {
                break;
            }
        }
    });
    handle
}

/// A thread that waits in `recv`. The test can suspend this thread.
struct Receiving {
    thread: JoinHandle<Result<Vec<u8>, Error>>,
}

/// A suspended thread of this process. Dropping this value resumes the thread.
struct Suspended {
    _gate: UnixStream,
    _only: MutexGuard<'static, ()>,
}

/// The descriptor from which the suspended thread reads.
static GATE: AtomicI32 = AtomicI32::new(-1);
static IS_SUSPENDED: AtomicBool = AtomicBool::new(false);
static ONLY: Mutex<()> = Mutex::new(());

/// The signal handler, which suspends the thread on which it runs.
extern "C" fn suspend_this_thread(_: libc::c_int) {
    IS_SUSPENDED.store(true, Ordering::SeqCst);
    let mut byte = 0_u8;
    // SAFETY: `byte` outlives the call, which writes at most one byte.
    unsafe { libc::read(GATE.load(Ordering::SeqCst), (&raw mut byte).cast(), 1) };
}

impl Receiving {
    /// Starts the thread. Returns when the thread is waiting in recvfrom(2).
    fn new(endpoint: &Endpoint) -> Self {
        let (sender, receiver) = mpsc::channel();
        let endpoint = endpoint.clone();
        let thread = thread::spawn(move || {
            sender.send(nix::unistd::gettid()).unwrap();
            endpoint.recv().map(|message| message.to_vec())
        });
        let call = format!("/proc/self/task/{}/syscall", receiver.recv().unwrap());
        let waits = libc::SYS_recvfrom.to_string();
        while fs::read_to_string(&call).unwrap().split(' ').next() != Some(&waits) {
            thread::yield_now();
        }
        Self { thread }
    }

    /// Suspends the thread with a signal, whose handler blocks in read(2).
    fn suspend(&self) -> Suspended {
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        let (gate, inner) = UnixStream::pair().unwrap();
        // Never close the descriptor, because a thread can read from it at any time.
        GATE.store(inner.into_raw_fd(), Ordering::SeqCst);
        IS_SUSPENDED.store(false, Ordering::SeqCst);
        let handler = SigHandler::Handler(suspend_this_thread);
        let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler only accesses atomics and calls read(2), both of which are
        // async-signal-safe.
        unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
        // SAFETY: the thread has not been joined, so its handle is valid.
        unsafe { libc::pthread_kill(self.thread.as_pthread_t(), libc::SIGUSR1) };
        while !IS_SUSPENDED.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        Suspended {
            _gate: gate,
            _only: only,
        }
    }

    fn result(self) -> Result<Vec<u8>, Error> {
        self.thread.join().unwrap()
    }
}

/// Asserts that for 1 s the engine continues to establish connections. In this time, timers of the
/// engine expire several times.
fn assert_engine_runs(stage: &Stage) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        let (_peer, _endpoint) = stage.connect();
        stage.assert_unaffected();
    }
}

#[test]
fn engine_runs_while_a_receiving_thread_is_stopped() {
    let stage = stage();
    let (mut peer, endpoint) = stage.connect();
    let receiving = Receiving::new(&endpoint);
    let suspended = receiving.suspend();
    let (begin, rest) = split_frame(100_000, 99_000);
    peer.send(&begin);
    assert_engine_runs(&stage);
    drop(suspended);
    peer.send(&rest);
    assert_eq!(receiving.result().unwrap(), vec![7; 100_000]);
}

#[test]
fn peer_disconnect_is_reported_after_its_messages() {
    let stage = stage();
    let (mut peer, endpoint) = stage.connect();
    let receiving = Receiving::new(&endpoint);
    let suspended = receiving.suspend();
    peer.send(&pdu(1, 0, &frame(0, b"one")));
    peer.send(&pdu(1, 0, &frame(1, b"two")));
    peer.stream.shutdown(Shutdown::Write).unwrap();
    assert_engine_runs(&stage);
    drop(suspended);
    assert_eq!(receiving.result().unwrap(), b"one");
    assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"two");
    let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
    let left = matches!(end, Error::Disconnected(CloseReason::PeerDisconnected));
    assert!(left, "{end:?}");
}

#[test]
fn engine_ends_connection_of_a_stopped_thread() {
    let stage = stage();
    let (mut peer, endpoint) = stage.connect();
    let receiving = Receiving::new(&endpoint);
    let suspended = receiving.suspend();
    let (begin, _) = split_frame(LONG, LONG - 1000);
    peer.send(&begin);
    endpoint.abort(3);
    let aborted = Instant::now();
    while endpoint.info().close_reason.is_none() {
        assert!(
            aborted.elapsed() < TIME_LIMIT,
            "the engine must end the connection"
        );
        assert_engine_runs(&stage);
    }
    assert_engine_runs(&stage);
    drop(suspended);
    assert!(matches!(receiving.result(), Err(Error::Disconnected(_))));
}

#[test]
fn wait_ends_in_time_while_a_long_frame_trickles() {
    let stage = stage();
    // The number of missing bytes determines the system call in which the thread waits.
    let waits = [60_000, 600_000].map(|missing| {
        let (mut peer, endpoint) = stage.connect();
        let (begin, rest) = split_frame(LONG, missing);
        peer.send(&begin);
        let trickling = trickle(peer, rest, Duration::from_secs(1));
        thread::spawn(move || {
            let start = Instant::now();
            let timeout = Duration::from_secs(6);
            let result = endpoint.recv_timeout(timeout);
            drop(trickling);
            assert!(matches!(result, Err(Error::TimedOut)), "{result:?}");
            let late = start.elapsed() - timeout;
            assert!(late < TIME_LIMIT, "{missing} missing: {late:?}");
        })
    });
    for wait in waits {
        wait.join().unwrap();
    }
}

#[test]
fn shutdown_ends_a_read_while_a_long_frame_trickles() {
    let stage = stage();
    let (mut peer, endpoint) = stage.connect();
    let (begin, rest) = split_frame(LONG, 60_000);
    peer.send(&begin);
    let stream = rdmsg::Stream::from(endpoint);
    let reader = stream.try_clone().unwrap();
    let reading = thread::spawn(move || std::io::Read::read(&mut &reader, &mut [0; 8]));
    let _trickling = trickle(peer, rest, Duration::from_millis(300));
    thread::sleep(Duration::from_millis(100));
    stream.shutdown(Shutdown::Read).unwrap();
    let start = Instant::now();
    assert_eq!(reading.join().unwrap().unwrap(), 0);
    let late = start.elapsed();
    assert!(late < TIME_LIMIT, "{late:?}");
}

#[test]
fn frame_that_the_engine_receives_is_a_sign_of_life() {
    assert!((0..20).any(|_| engine_receives_a_trickling_frame()));
}

/// Returns false if this thread paused for 3 s or longer between two pieces. Keepalive may then end
/// the connection.
fn engine_receives_a_trickling_frame() -> bool {
    let mut config = config();
    config.keepalive_timeout = 5 * TIMEOUT;
    let stage = Stage::with(config);
    let (mut peer, endpoint) = stage.connect();
    let mut last = Instant::now();
    // The 60 pieces need at least 9 s, which is longer than the keepalive interval and timeout.
    for piece in pdu(1, 0, &frame(0, &[7; 60_000])).chunks(1000) {
        if last.elapsed() >= 3 * TIMEOUT {
            return false;
        }
        last = Instant::now();
        peer.send(piece);
        thread::sleep(TIMEOUT * 3 / 20);
    }
    assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), [7; 60_000]);
    true
}

#[test]
fn peer_that_stops_inside_a_frame_is_found_dead() {
    let mut config = config();
    config.keepalive_timeout = TIMEOUT;
    let stage = Stage::with(config);
    let (mut peer, endpoint) = stage.connect();
    let mut bytes = pdu(1, 0, &frame(0, &[7; 600_000]));
    bytes.truncate(300_000);
    peer.send(&bytes);
    let end = loop {
        if let Completion::Disconnected(reason) =
            endpoint.next_completion_timeout(TIME_LIMIT).unwrap()
        {
            break reason;
        }
    };
    assert!(matches!(end, CloseReason::KeepaliveTimeout), "{end:?}");
}
