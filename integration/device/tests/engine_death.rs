//! An engine whose thread dies: by a logger that panics in it. In a program of its own, because a
//! program has one logger.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use log::{LevelFilter, Log, Metadata, Record};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmsg::{CloseReason, Endpoint, Error, Interest, Listener, TrySendError};
use toolbox::DeviceTest;

const PATIENCE: Duration = Duration::from_secs(20);

/// Panics once when armed, the next time that the engine's thread says something.
struct Fuse {
    armed: AtomicBool,
}

impl Log for Fuse {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if thread::current().name() == Some("rdmsg-engine")
            && self.armed.swap(false, Ordering::SeqCst)
        {
            panic!("a panic of the test's own making, at: {}", record.args());
        }
    }

    fn flush(&self) {}
}

static FUSE: Fuse = Fuse {
    armed: AtomicBool::new(false),
};

fn pair(listener: &Listener) -> (Endpoint, Endpoint) {
    let address = listener.local_addr();
    let client = thread::spawn(move || Endpoint::connect(address).unwrap());
    let server = listener.accept_timeout(PATIENCE).unwrap();
    (client.join().unwrap(), server)
}

#[test]
fn an_engine_that_dies_takes_its_own_connections_along_and_no_others() {
    // Before the test's own.
    log::set_logger(&FUSE).unwrap();
    log::set_max_level(LevelFilter::Info);
    let lab = DeviceTest::start();
    let old = Listener::bind(lab.at(0)).unwrap();
    let (client, server) = pair(&old);
    let waiter = thread::spawn({
        let client = client.clone();
        move || client.recv().unwrap_err()
    });

    FUSE.armed.store(true, Ordering::SeqCst);
    let error = Listener::bind(lab.at(0)).unwrap_err();
    assert!(matches!(error, Error::EngineShutDown), "{error:?}");
    assert!(!FUSE.armed.load(Ordering::SeqCst));

    let aborted = |error: &Error| matches!(error, Error::Disconnected(CloseReason::LocallyAborted));
    let end = waiter.join().unwrap();
    assert!(aborted(&end), "{end:?}");
    for endpoint in [&client, &server] {
        let end = endpoint.recv_timeout(PATIENCE).unwrap_err();
        assert!(aborted(&end), "{end:?}");
        let end = endpoint.send(b"late").unwrap_err();
        assert!(aborted(&end), "the same reason everywhere: {end:?}");
        let Err(TrySendError::Failed(end)) = endpoint.try_send(b"late") else {
            panic!("it went on")
        };
        assert!(aborted(&end), "{end:?}");
        let fd = endpoint.event_fd(Interest::Readable).unwrap();
        let fds = &mut [PollFd::new(fd, PollFlags::POLLIN)];
        assert_eq!(poll(fds, PollTimeout::ZERO).unwrap(), 1, "the end");
    }
    let error = old.accept_timeout(PATIENCE).unwrap_err();
    assert!(matches!(error, Error::EngineShutDown), "{error:?}");

    // The old handles are still there, and with them the dead engine.
    let (client, server) = pair(&Listener::bind(lab.at(0)).unwrap());
    client.send(b"on a new engine").unwrap();
    assert_eq!(*server.recv_timeout(PATIENCE).unwrap(), *b"on a new engine");
}
