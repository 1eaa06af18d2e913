//! Test of an engine whose thread fails. The test finds the engine's epoll instance among the
//! descriptors of the process, and replaces this instance with `/dev/null`. The test is a separate
//! program, so that the process has no other engine.

use std::{
    env,
    fs::{self, File},
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, RawFd},
    thread,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmsg::{CloseReason, Config, Connector, Endpoint, Error, Interest, Listener, TrySendError};

const TIME_LIMIT: Duration = Duration::from_secs(60);

fn local_ip() -> IpAddr {
    match env::var("LAB_ADDR") {
        Ok(addr) => addr.parse().unwrap(),
        Err(_) => [127, 0, 0, 1].into(),
    }
}

fn bind() -> Result<Listener, Error> {
    Listener::bind((local_ip(), 0))
}

/// Connects with a connect timeout that suffices on a busy machine.
fn connect(address: SocketAddr) -> Result<Endpoint, Error> {
    let config = Config::default().with(|config| config.connect_timeout = TIME_LIMIT);
    Connector::new().config(&config).connect(address)
}

fn pair(listener: &Listener) -> (Endpoint, Endpoint) {
    let address = listener.local_addr();
    let client = thread::spawn(move || connect(address).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    (client.join().unwrap(), server)
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
    let (client, server) = pair(&old);
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
    let (client, server) = pair(&bind().unwrap());
    client.send(b"on a new engine").unwrap();
    assert_eq!(
        *server.recv_timeout(TIME_LIMIT).unwrap(),
        *b"on a new engine"
    );
}
