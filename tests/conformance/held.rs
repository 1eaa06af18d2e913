//! What is sent against a full window: taken, up to a frame, and sent when there is room.

use std::{
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use rdmsg::{CloseReason, Config, Endpoint, Error, RemoteAccess, RemoteRegion, TrySendError};

use crate::stage::{PATIENCE, pair_with, pattern, small};

/// A window that is soon full.
fn holding() -> Config {
    small().with_hold_back(true)
}

/// Sends numbers until the window is full, and `held` more. Returns how many they are.
fn press(near: &Endpoint, held: u8) -> u8 {
    let mut sent = 0;
    while match near.try_send(&[sent]) {
        Ok(()) => true,
        Err(TrySendError::Full) => false,
        Err(other) => panic!("{other}"),
    } {
        sent += 1;
    }
    for number in sent..sent + held {
        near.send(&[number]).unwrap();
    }
    let counted = near.statistics().messages_sent;
    assert_eq!(counted, sent.into(), "there is no room for the others");
    sent + held
}

fn take(far: &Endpoint, numbers: u8) {
    for number in 0..numbers {
        assert_eq!(*far.recv_timeout(PATIENCE).unwrap(), [number]);
    }
}

#[test]
fn what_is_sent_against_a_full_window_arrives_in_order_and_a_flush_waits_for_it() {
    let (near, far) = pair_with(&holding());
    let numbers = press(&near, 9);
    assert!(near.try_send(b"now").unwrap_err().is_full());
    let early = near.flush_timeout(Duration::from_millis(20));
    assert!(matches!(early, Err(Error::TimedOut)));
    let flushing = thread::spawn({
        let near = near.clone();
        move || near.flush_timeout(PATIENCE)
    });
    take(&far, numbers);
    flushing.join().unwrap().unwrap();
    near.send(b"behind").unwrap();
    assert_eq!(*far.recv_timeout(PATIENCE).unwrap(), *b"behind");
}

#[test]
fn nobody_has_to_come_back_for_what_is_held() {
    let (near, far) = pair_with(&holding());
    for _ in 0..20 {
        let numbers = press_again(&near);
        take(&far, numbers);
    }
}

/// As [`press`], where more was sent before.
fn press_again(near: &Endpoint) -> u8 {
    for number in 0..12 {
        near.send(&[number]).unwrap();
    }
    12
}

#[test]
fn a_close_goes_behind_what_is_held() {
    let (near, far) = pair_with(&holding());
    let numbers = press(&near, 9);
    let closing = thread::spawn(move || near.close());
    take(&far, numbers);
    let end = far.recv_timeout(PATIENCE).unwrap_err();
    assert!(matches!(end, Error::Disconnected(CloseReason::PeerClosed)));
    closing.join().unwrap().unwrap();
}

#[test]
fn a_dropped_endpoint_leaves_nothing_held() {
    let (near, far) = pair_with(&holding());
    let numbers = press(&near, 9);
    drop(near);
    take(&far, numbers);
    let end = far.recv_timeout(PATIENCE).unwrap_err();
    assert!(matches!(end, Error::Disconnected(CloseReason::PeerClosed)));
}

#[test]
fn what_is_held_when_the_peer_closes_is_not_told_as_delivered() {
    let (near, far) = pair_with(&holding());
    press(&near, 9);
    far.close().unwrap();
    let lost = near.close().unwrap_err();
    let reason = CloseReason::PeerClosed;
    assert!(matches!(lost, Error::Undelivered(why) if why == reason));
}

#[test]
fn a_finish_goes_behind_what_is_held() {
    let (near, far) = pair_with(&holding());
    let numbers = press(&near, 9);
    near.finish().unwrap();
    assert!(matches!(near.send(b"more"), Err(Error::Finished)));
    take(&far, numbers);
    let end = far.recv_timeout(PATIENCE).unwrap_err();
    assert!(matches!(end, Error::PeerFinished));
}

#[test]
fn other_messages_and_one_sided_operations_go_behind_what_is_held() {
    let (near, far) = pair_with(&holding());
    let region = far.region(8, RemoteAccess::WRITE).unwrap();
    let here = near.region(8, RemoteAccess::NONE).unwrap();
    far.send(&region.remote().to_bytes()).unwrap();
    let told = near.recv_timeout(PATIENCE).unwrap();
    let remote = RemoteRegion::from_bytes(&(*told).try_into().unwrap());
    let numbers = press(&near, 3);
    let write = near.try_write(&here, 0..8, &remote, 0, 1);
    assert!(write.unwrap_err().is_full());
    assert!(near.try_send_with_id(b"told", 2).unwrap_err().is_full());
    let sending = thread::spawn(move || {
        near.send(&pattern(100_000)).unwrap();
        near.send_with_id(b"told", 3).unwrap();
        near
    });
    take(&far, numbers);
    assert_eq!(*far.recv_timeout(PATIENCE).unwrap(), pattern(100_000));
    assert_eq!(*far.recv_timeout(PATIENCE).unwrap(), *b"told");
    drop(sending.join().unwrap());
}

#[test]
fn no_more_is_held_than_a_frame_takes() {
    let (near, _far) = pair_with(&holding());
    let sent = press(&near, 0);
    let mut cx = Context::from_waker(Waker::noop());
    let mut held = 0;
    while let Poll::Ready(result) = near.poll_send(&mut cx, &pattern(300)) {
        result.unwrap();
        held += 1;
    }
    // Each with its length, in a frame of 1000 bytes.
    assert_eq!((sent, held), (4, 3));
}
