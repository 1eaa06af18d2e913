use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmsg::{Config, Interest, TrySendError};

use crate::stage::{Stage, pair_with, small};

fn is_readable(fd: BorrowedFd<'_>, timeout: PollTimeout) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, timeout).unwrap() == 1
}

const LONG: PollTimeout = PollTimeout::MAX;

#[test]
fn descriptors_tell_of_messages_and_of_room() {
    let (near, far) = pair_with(&small());
    let readable = far.event_fd(Interest::Readable).unwrap();
    let writable = near.event_fd(Interest::Writable).unwrap();
    assert!(!is_readable(readable, PollTimeout::ZERO));
    assert!(is_readable(writable, PollTimeout::ZERO));
    while !matches!(near.try_send(b"x"), Err(TrySendError::Full)) {}
    assert!(!is_readable(writable, PollTimeout::ZERO));
    assert!(is_readable(readable, LONG));
    while let Some(message) = far.try_recv().unwrap() {
        drop(message);
    }
    assert!(is_readable(writable, LONG), "room has come");
    near.close().unwrap();
    assert!(is_readable(readable, LONG), "so does the end");
}

#[test]
fn a_listeners_descriptor_tells_of_connections() {
    let stage = Stage::new(&Config::default());
    let fd = stage.listener.event_fd().unwrap();
    assert!(!is_readable(fd, PollTimeout::ZERO));
    let (connector, addr) = (stage.connector.clone(), stage.listener.local_addr());
    let connecting = std::thread::spawn(move || connector.connect(addr).unwrap());
    let accepted = loop {
        assert!(is_readable(fd, LONG));
        if let Some(endpoint) = stage.listener.try_accept().unwrap() {
            break endpoint;
        }
    };
    drop((connecting.join().unwrap(), accepted));
}
