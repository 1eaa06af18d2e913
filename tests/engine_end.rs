//! Test of an engine whose thread fails. The test finds the engine's epoll instance among the
//! descriptors of the process, and replaces this instance with `/dev/null`. The test is a separate
//! program, so that the process has no other engine.

use std::{
    fs::{self, File},
    os::fd::{AsRawFd, RawFd},
    thread,
};

use common::{TIME_LIMIT, connect_and_accept, connector, local_ip};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmsg::{CloseReason, Error, Interest, Listener, TrySendError};

fn bind() -> Result<Listener, Error> {
    Listener::bind((local_ip(), 0))
}

/// Returns the descriptor of the epoll instance on which the engine waits. This instance watches
/// the engine's two mailboxes, with the tokens 0 and 4.
fn epoll_of_engine() -> RawFd {
    let is_engines = |info: &str| {
        let tokens: Vec<_> = info
            .lines()
            .filter(|line| line.starts_with("tfd:"))
            .filter_map(|line| line.split_whitespace().nth(5))
            .collect();
        tokens.contains(&"0") && tokens.contains(&"4")
    };
    let files = fs::read_dir("/proc/self/fdinfo").unwrap();
    let mut epolls = files.filter_map(|file| {
        let path = file.unwrap().path();
        let info = fs::read_to_string(&path).ok()?;
        is_engines(&info).then(|| path.file_name()?.to_str()?.parse().ok())?
    });
    epolls.next().expect("an engine must run")
}

#[test]
fn failed_engine_ends_its_connections_and_listener() {
    let old = bind().unwrap();
    let (client, server) = connect_and_accept(&connector(), &old);
    let waiter = thread::spawn({
        let client = client.clone();
        move || client.recv().unwrap_err()
    });

    let null = File::open("/dev/null").unwrap();
    // SAFETY: both descriptors are open, and the engine handles an error of any call on its epoll
    // instance.
    assert!(unsafe { libc::dup2(null.as_raw_fd(), epoll_of_engine()) } >= 0);
    // Binding wakes the engine's thread, whose next epoll_wait(2) fails.
    drop(bind());

    let aborted = |error: &Error| match error {
        Error::Disconnected(CloseReason::Os(error)) => error.call == "epoll_wait",
        _ => false,
    };
    let end = waiter.join().unwrap();
    assert!(aborted(&end), "{end:?}");
    for endpoint in [&client, &server] {
        let end = endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
        assert!(aborted(&end), "{end:?}");
        let end = endpoint.send(b"late").unwrap_err();
        assert!(
            aborted(&end),
            "all calls must report the same reason: {end:?}"
        );
        let Err(TrySendError::Failed(end)) = endpoint.try_send(b"late") else {
            panic!("the connection continued")
        };
        assert!(aborted(&end), "{end:?}");
        let fd = endpoint.event_fd(Interest::Readable).unwrap();
        let fds = &mut [PollFd::new(fd, PollFlags::POLLIN)];
        assert_eq!(
            poll(fds, PollTimeout::ZERO).unwrap(),
            1,
            "the fd must report the end"
        );
    }
    let error = old.accept_timeout(TIME_LIMIT).unwrap_err();
    let is_end = matches!(
        &error,
        Error::ListenerEnded {
            reason: CloseReason::Os(_),
            ..
        }
    );
    assert!(is_end, "{error:?}");

    // A new listener uses a new engine, while the old handles still refer to the ended engine.
    let (client, server) = connect_and_accept(&connector(), &bind().unwrap());
    client.send(b"on a new engine").unwrap();
    assert_eq!(
        *server.recv_timeout(TIME_LIMIT).unwrap(),
        *b"on a new engine"
    );
}
