use std::{os::fd::BorrowedFd, thread, time::Duration};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};
use rdmsg::{Config, Endpoint, Error, Interest, TrySendError};

use crate::stage::{Stage, pair_with, small};

fn is_readable(fd: BorrowedFd<'_>, timeout: PollTimeout) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, timeout).unwrap() == 1
}

const NO_TIMEOUT: PollTimeout = PollTimeout::MAX;

#[test]
fn descriptors_report_messages_and_room() {
    let (near, far) = pair_with(&small());
    let readable = far.event_fd(Interest::Readable).unwrap();
    let writable = near.event_fd(Interest::Writable).unwrap();
    assert!(!is_readable(readable, PollTimeout::ZERO));
    assert!(is_readable(writable, PollTimeout::ZERO));
    while !matches!(near.try_send(b"x"), Err(TrySendError::Full)) {}
    assert!(!is_readable(writable, PollTimeout::ZERO));
    assert!(is_readable(readable, NO_TIMEOUT));
    while let Some(message) = far.try_recv().unwrap() {
        drop(message);
    }
    assert!(
        is_readable(writable, NO_TIMEOUT),
        "free space in the window must make the fd readable"
    );
    near.close().unwrap();
    assert!(
        is_readable(readable, NO_TIMEOUT),
        "the end of the connection must make the fd readable"
    );
}

#[test]
fn listener_descriptor_reports_connections() {
    let stage = Stage::new(&Config::default());
    let fd = stage.listener.event_fd().unwrap();
    assert!(!is_readable(fd, PollTimeout::ZERO));
    let (connector, addr) = (stage.connector.clone(), stage.listener.local_addr());
    let connecting = thread::spawn(move || connector.connect(addr).unwrap());
    let accepted = loop {
        assert!(is_readable(fd, NO_TIMEOUT));
        if let Some(endpoint) = stage.listener.try_accept().unwrap() {
            break endpoint;
        }
    };
    drop((connecting.join().unwrap(), accepted));
}

/// Echoes messages with a level-triggered event loop until the connection ends. While the window
/// is full, so that no reply can be sent, the loop receives no messages. Returns the number of
/// wake-ups.
fn echo_by_levels(endpoint: &Endpoint) -> u32 {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let watched = |interest, on: bool| {
        let flags = if on {
            EpollFlags::EPOLLIN
        } else {
            EpollFlags::empty()
        };
        (endpoint.event_fd(interest).unwrap(), flags)
    };
    for (interest, on) in [(Interest::Readable, true), (Interest::Writable, false)] {
        let (fd, flags) = watched(interest, on);
        epoll.add(fd, EpollEvent::new(flags, 0)).unwrap();
    }
    let mut waiting = None;
    let mut wakes = 0;
    loop {
        epoll
            .wait(&mut [EpollEvent::empty()], EpollTimeout::NONE)
            .unwrap();
        wakes += 1;
        let was_blocked = waiting.is_some();
        loop {
            if waiting.is_none() {
                match endpoint.try_recv() {
                    Ok(message) => waiting = message,
                    Err(_) => return wakes,
                }
            }
            let Some(message) = &waiting else { break };
            match endpoint.try_send(message) {
                Ok(()) => waiting = None,
                Err(TrySendError::Full) => break,
                Err(TrySendError::Failed(_)) => return wakes,
            }
        }
        if was_blocked != waiting.is_some() {
            for interest in [Interest::Readable, Interest::Writable] {
                let on = (interest == Interest::Writable) == waiting.is_some();
                let (fd, flags) = watched(interest, on);
                epoll.modify(fd, &mut EpollEvent::new(flags, 0)).unwrap();
            }
        }
    }
}

#[test]
fn level_triggered_loop_sleeps_without_room() {
    let (near, far) = pair_with(&small());
    let server = thread::spawn(move || echo_by_levels(&far));
    let mut sent = 0;
    for _ in 0..3 {
        // The client receives no replies, so the window for the server's replies is soon full. The
        // server's loop then stops receiving.
        let standstill = loop {
            match near.send_timeout(b"question", Duration::from_millis(300)) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(standstill, Error::TimedOut));
        while near.recv_timeout(Duration::from_millis(100)).is_ok() {}
    }
    near.close().unwrap();
    let wakes = server.join().unwrap();
    // A loop that spins would exceed this number of wake-ups within a millisecond.
    assert!(
        wakes < 20 * sent + 50,
        "the loop woke {wakes} times for {sent} messages"
    );
}
