use std::thread;

use rdmsg::{CloseReason, Completion, Endpoint, Error, Group, TrySendError};

use crate::stage::{TIME_LIMIT, pair, pair_with, small};

/// The maximum number of control messages that a side can send before the peer's program drops one
/// of them.
const WINDOW: u32 = 2;

fn next(endpoint: &Endpoint) -> Completion {
    endpoint.next_completion_timeout(TIME_LIMIT).unwrap()
}

/// Receives the next completion, which must be a control message.
fn control(endpoint: &Endpoint) -> rdmsg::Message {
    match next(endpoint) {
        Completion::Control(message) => message,
        other => panic!("{other:?}"),
    }
}

/// Receives `count` control messages, and returns their bytes.
fn controls(endpoint: &Endpoint, count: usize) -> Vec<Vec<u8>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.push(control(endpoint).into_vec());
    }
    taken
}

#[test]
fn control_message_arrives_while_window_is_full() {
    let (near, far) = pair_with(&small());
    let mut held = Vec::new();
    while near.try_send(b"request").is_ok() {
        let Completion::Received(message) = next(&far) else {
            panic!("the completion must be a message");
        };
        held.push(message);
    }
    assert!(matches!(near.try_send(b"x"), Err(TrySendError::Full)));
    near.send_control(b"cancel").unwrap();
    assert_eq!(control(&far), b"cancel");
    far.send_control(b"cancelled").unwrap();
    // After a refused send, the library reports `Room` as soon as the window is no longer full. The
    // window is still full here, so the next completion is the control message.
    assert_eq!(control(&near), b"cancelled");
    assert!(matches!(near.try_send(b"x"), Err(TrySendError::Full)));
}

#[test]
fn control_message_beyond_the_window_is_refused() {
    let (near, far) = pair();
    let mut held = Vec::new();
    for number in 0..WINDOW {
        near.send_control(&number.to_be_bytes()).unwrap();
        held.push(control(&far));
    }
    let refused = near.send_control(b"more").unwrap_err();
    let untaken = matches!(refused, Error::ControlMessagesNotTaken { untaken: WINDOW });
    assert!(untaken, "{refused}");
    assert_eq!(held.remove(0), 0_u32.to_be_bytes());
    // When the flush returns, `near` has received the credit of the control message that was
    // dropped.
    far.flush().unwrap();
    near.send_control(b"more").unwrap();
    held.push(control(&far));
    assert_eq!(*held.last().unwrap(), b"more");
    assert!(near.send_control(b"yet more").is_err());
    near.send(b"a message").unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"a message");
}

#[test]
fn control_messages_keep_their_order() {
    let (near, far) = pair();
    let (far, count) = (thread::spawn(move || controls(&far, 1000)), 1000_u32);
    for number in 0..count {
        loop {
            match near.send_control(&number.to_be_bytes()) {
                Ok(()) => break,
                Err(Error::ControlMessagesNotTaken { .. }) => near.flush().unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
    }
    let expected: Vec<_> = (0..count).map(|number| number.to_be_bytes()).collect();
    assert!(far.join().unwrap() == expected);
}

#[test]
fn recv_keeps_control_messages_for_later() {
    let (near, far) = pair();
    near.send_control(b"first").unwrap();
    near.send(b"a message").unwrap();
    near.send_control(b"").unwrap();
    near.flush().unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"a message");
    assert_eq!(controls(&far, 2), [&b"first"[..], b""]);
    assert!(far.try_next_completion().unwrap().is_none());
}

#[test]
fn too_long_control_message_is_refused() {
    let (near, far) = pair();
    let longest = [7; 256];
    near.send_control(&longest).unwrap();
    assert_eq!(control(&far), longest);
    for (endpoint, limit) in [
        (near, 256),
        (pair_with(&small().with(|c| c.eager_size = Some(64))).0, 64),
    ] {
        let refused = endpoint.send_control(&vec![7; limit + 1]).unwrap_err();
        let named = matches!(refused, Error::ControlMessageTooLong { len, limit: of }
            if len == limit + 1 && of as usize == limit);
        assert!(named, "{refused}");
        let both = endpoint.info().negotiated.unwrap();
        assert!(
            both.send_eager as usize >= limit,
            "a control message of the maximum length must fit into one frame"
        );
    }
}

#[test]
fn close_confirms_control_messages() {
    let (near, far) = pair();
    near.finish().unwrap();
    for _ in 0..WINDOW {
        near.send_control(b"the last").unwrap();
    }
    near.close().unwrap();
    let refused = near.send_control(b"later").unwrap_err();
    assert!(
        matches!(&refused, Error::Disconnected(CloseReason::LocallyClosed)),
        "{refused}"
    );
    let (mut messages, mut finished) = (0, 0);
    loop {
        match next(&far) {
            Completion::Control(message) => {
                assert_eq!(message, b"the last");
                messages += 1;
            }
            Completion::Finished => finished += 1,
            Completion::Disconnected(reason) => break assert_eq!(reason, CloseReason::PeerClosed),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((messages, finished), (WINDOW, 1));
    let refused = far.send_control(b"x").unwrap_err();
    assert!(matches!(refused, Error::Disconnected(_)), "{refused}");
}

#[test]
fn group_gets_control_messages() {
    let (near, far) = pair();
    near.send_control(b"before").unwrap();
    near.flush().unwrap();
    let group = Group::new();
    let key = group.add(&far).unwrap();
    near.send_control(b"after").unwrap();
    for expected in [&b"before"[..], b"after"] {
        let (from, completion) = group.completions().recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(from, key);
        let Completion::Control(message) = completion else {
            panic!("{completion:?}");
        };
        assert_eq!(message, expected);
    }
}

#[test]
fn peer_leaving_is_reported_once() {
    let (near, far) = pair_with(&small());
    let mut held = Vec::new();
    while near.try_send(b"request").is_ok() {
        match next(&far) {
            Completion::Received(message) => held.push(message),
            other => panic!("{other:?}"),
        }
    }
    near.ask_to_leave().unwrap();
    near.ask_to_leave().unwrap();
    assert!(matches!(next(&far), Completion::PeerLeaving));
    near.flush().unwrap();
    assert!(far.try_next_completion().unwrap().is_none());
    drop(held);
    near.send(b"goes on").unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"goes on");
    far.ask_to_leave().unwrap();
    far.send(b"so does the other side").unwrap();
    let answer = near.recv_timeout(TIME_LIMIT).unwrap();
    assert_eq!(answer, b"so does the other side");
    // The first completion can be `Room`, because an earlier message was refused.
    assert!((0..2).any(|_| matches!(next(&near), Completion::PeerLeaving)));
    far.close().unwrap();
    let refused = far.ask_to_leave().unwrap_err();
    assert!(matches!(refused, Error::Disconnected(_)), "{refused}");
}

#[test]
fn held_control_message_outlives_its_connection() {
    let (near, far) = pair();
    for _ in 0..WINDOW {
        near.send_control(b"unread").unwrap();
    }
    near.flush().unwrap();
    let held = control(&far);
    drop(far);
    // The held message stays readable after its connection has ended, and can then be dropped.
    assert!(matches!(
        next(&near),
        Completion::Disconnected(CloseReason::PeerClosed)
    ));
    assert_eq!(held, b"unread");
}
