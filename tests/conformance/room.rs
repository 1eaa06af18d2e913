use std::time::Duration;

use rdmsg::{Completion, Endpoint, Error, RemoteAccess, TrySendError};

use crate::stage::{TIME_LIMIT, pair_with, small, supports_or_report};

/// Sends messages until the window is full. Returns the number of messages sent.
fn fill(endpoint: &Endpoint) -> usize {
    let mut sent = 0;
    loop {
        match endpoint.try_send(b"x") {
            Ok(()) => sent += 1,
            Err(TrySendError::Full) => return sent,
            Err(TrySendError::Failed(error)) => panic!("{error}"),
        }
    }
}

fn next(endpoint: &Endpoint) -> Completion {
    endpoint.next_completion_timeout(TIME_LIMIT).unwrap()
}

/// Receives and drops `count` messages.
fn take(endpoint: &Endpoint, count: usize) {
    for _ in 0..count {
        endpoint.recv_timeout(TIME_LIMIT).unwrap();
    }
}

fn assert_no_completion(endpoint: &Endpoint) {
    // When the flush returns, all messages and grants in flight have arrived.
    endpoint.flush().unwrap();
    assert!(endpoint.try_next_completion().unwrap().is_none());
}

#[test]
fn room_comes_once_after_a_refusal() {
    let (near, far) = pair_with(&small());
    near.send(b"waits for room if need be").unwrap();
    take(&far, 1);
    assert_no_completion(&near);
    for _ in 0..3 {
        let sent = fill(&near);
        assert!(fill(&near) == 0, "the library must refuse further sends");
        assert!(near.try_next_completion().unwrap().is_none());
        take(&far, sent);
        assert!(matches!(next(&near), Completion::Room));
        assert_no_completion(&near);
    }
}

#[test]
fn room_is_not_repeated_before_it_is_taken() {
    let (near, far) = pair_with(&small());
    for _ in 0..5 {
        let sent = fill(&near);
        take(&far, sent);
        near.flush().unwrap();
    }
    assert_eq!(near.completions().len(), 1);
    assert!(matches!(next(&near), Completion::Room));
    assert_no_completion(&near);
}

#[test]
fn receiving_thread_gets_no_room_report() {
    let (near, far) = pair_with(&small());
    for _ in 0..3 {
        let sent = fill(&near);
        take(&far, sent);
        far.send(b"y").unwrap();
        assert_eq!(near.recv_timeout(TIME_LIMIT).unwrap(), b"y");
        let waited = near.recv_timeout(Duration::from_millis(1));
        assert!(matches!(waited, Err(Error::TimedOut)));
        assert!(near.try_next_completion().unwrap().is_none());
    }
}

#[test]
fn refused_operations_get_room_report() {
    let (near, far) = pair_with(&small());
    if !supports_or_report(
        near.info().capabilities.unwrap().write_with_imm,
        "write_with_imm",
    ) {
        return;
    }
    let region = far.one_sided().region(64, RemoteAccess::ALL).unwrap();
    let remote = region.remote();
    let local = near.one_sided().region(64, RemoteAccess::NONE).unwrap();
    let mut started = 0;
    while !matches!(
        near.one_sided()
            .try_write_with_imm(&local, 0..8, &remote, 0, 1, started),
        Err(TrySendError::Full)
    ) {
        started += 1;
    }
    for _ in 0..started {
        let completion = next(&far);
        assert!(
            matches!(completion, Completion::Immediate(_)),
            "{completion:?}"
        );
    }
    let (mut done, mut room) = (0, 0);
    while done < started || room < 1 {
        match next(&near) {
            Completion::Written(id) => {
                assert_eq!(id, done);
                done += 1;
            }
            Completion::Room => room += 1,
            other => panic!("{other:?}"),
        }
    }
    near.one_sided()
        .try_write_with_imm(&local, 0..8, &remote, 0, 1, 9)
        .unwrap();
}

#[test]
fn wait_for_room_reports_the_end() {
    let (near, far) = pair_with(&small());
    fill(&near);
    far.abort(7);
    let mut rooms = 0;
    loop {
        match next(&near) {
            Completion::Room => rooms += 1,
            Completion::Disconnected(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(rooms <= 1, "{rooms}");
    assert!(matches!(near.try_send(b"x"), Err(TrySendError::Failed(_))));
    assert!(
        near.try_next_completion().is_err(),
        "no completion may follow the end"
    );
}
