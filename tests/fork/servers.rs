//! Tests of daemons, of servers with forked workers, and of parents that exit before their
//! children.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
    process,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::pause,
};
use rdmsg::{Connector, Endpoint, Error, Listener};

use crate::stage::{
    TIME_LIMIT, answer, ask, assert_forked, bind, config, forked, local_ip, pair,
    run_in_own_process,
};

/// Sends an address through a socket.
fn send_address(mut to: &UnixStream, address: SocketAddr) {
    to.write_all(format!("{address}\n").as_bytes()).unwrap();
}

/// Receives an address from a socket.
fn receive_address(mut from: &UnixStream) -> SocketAddr {
    let mut text = Vec::new();
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte).unwrap();
        if byte == *b"\n" {
            return String::from_utf8(text).unwrap().parse().unwrap();
        }
        text.extend(byte);
    }
}

#[test]
fn daemon_that_bound_before_the_fork_binds_again() {
    run_in_own_process(
        module_path!(),
        "daemon_that_bound_before_the_fork_binds_again",
        || {
            let (from_children, to_test) = UnixStream::pair().unwrap();
            let (to_daemon, from_test) = UnixStream::pair().unwrap();
            // The starter is a child of this test. It forks the daemon, and then exits.
            let starter = forked(|| {
                let listener = bind();
                let address = listener.local_addr();
                drop(pair(&listener));
                // The daemon is a child of the starter. The starter does not wait for the daemon.
                forked(|| {
                    assert_forked(&listener.accept().unwrap_err());
                    // Wait until the starter has exited.
                    receive_address(&from_test);
                    let again = Listener::bind(address).unwrap();
                    send_address(&to_test, again.local_addr());
                    assert_eq!(answer(&again, b"of the daemon"), *b"to the daemon");
                    send_address(&to_test, again.local_addr());
                });
                send_address(&to_test, address);
                process::exit(0);
            });
            let bound = receive_address(&from_children);
            starter.assert_success();
            send_address(&to_daemon, bound);
            assert_eq!(receive_address(&from_children), bound);
            assert_eq!(ask(bound, b"to the daemon"), *b"of the daemon");
            assert_eq!(receive_address(&from_children), bound);
        },
    );
}

#[test]
fn workers_listen_each_by_itself() {
    const WORKERS: u8 = 4;
    run_in_own_process(module_path!(), "workers_listen_each_by_itself", || {
        // Create a connection, so that the parent has used the library before it forks the workers.
        let listener = bind();
        let ends = pair(&listener);
        let (from_workers, to_test) = UnixStream::pair().unwrap();
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                forked(|| {
                    let listener = bind();
                    send_address(&to_test, listener.local_addr());
                    let id = process::id().to_string();
                    assert_eq!(answer(&listener, id.as_bytes()), *b"which one");
                })
            })
            .collect();
        let mut answers: Vec<String> = (0..WORKERS)
            .map(|_| String::from_utf8(ask(receive_address(&from_workers), b"which one")).unwrap())
            .collect();
        answers.sort();
        let mut ids: Vec<_> = workers.iter().map(|worker| worker.0.to_string()).collect();
        ids.sort();
        assert_eq!(answers, ids);
        workers
            .into_iter()
            .for_each(|worker| worker.assert_success());
        crate::stage::exchange(&ends.0, &ends.1);
    });
}

/// A child must not keep its parent's connections open.
#[test]
fn peer_of_a_killed_parent_sees_the_end() {
    run_in_own_process(
        module_path!(),
        "peer_of_a_killed_parent_sees_the_end",
        || {
            let listener = bind();
            let address = listener.local_addr();
            let (from_parent, to_test) = UnixStream::pair().unwrap();
            let parent = forked(|| {
                let own = bind();
                let mut config = config();
                config.keepalive_interval = None;
                let client = Connector::new().config(&config).connect(address).unwrap();
                client.send(b"there").unwrap();
                let child = forked(pause);
                send_address(&to_test, SocketAddr::from(([0, 0, 0, 0], 0)));
                send_address(&to_test, own.local_addr());
                (&to_test)
                    .write_all(&child.0.as_raw().to_ne_bytes())
                    .unwrap();
                let _ = client.recv();
            });
            let server = listener.accept_timeout(TIME_LIMIT).unwrap();
            assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"there");
            receive_address(&from_parent);
            let bound = receive_address(&from_parent);
            let mut child = [0; 4];
            (&from_parent).read_exact(&mut child).unwrap();
            kill(parent.0, Signal::SIGKILL).unwrap();
            waitpid(parent.0, None).unwrap();
            let end = server.recv_timeout(TIME_LIMIT).unwrap_err();
            assert!(matches!(end, Error::Disconnected(_)), "{end:?}");
            assert!(
                Endpoint::connect(bound).is_err(),
                "the address of the killed parent must refuse connects"
            );
            assert_eq!(Listener::bind(bound).unwrap().local_addr(), bound);
            assert_eq!(bound.ip(), local_ip());
            kill(
                nix::unistd::Pid::from_raw(i32::from_ne_bytes(child)),
                Signal::SIGKILL,
            )
            .unwrap();
        },
    );
}
