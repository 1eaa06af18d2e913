use std::{
    collections::HashMap,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use crossbeam_channel::Select;
use rdmsg::{CloseReason, Completion, Endpoint, Error, Group, Outgoing, TrySendError};

use crate::stage::{Stage, TIME_LIMIT, pair, pair_with, small};

fn next(group: &Group) -> (u64, Completion) {
    group.next_completion_timeout(TIME_LIMIT).unwrap()
}

/// Receives the next completion, which must be a message. Returns the endpoint's key and the
/// message's bytes.
fn message(group: &Group) -> (u64, Vec<u8>) {
    match next(group) {
        (key, Completion::Received(message)) => (key, message.into_vec()),
        other => panic!("{other:?}"),
    }
}

fn is_grouped<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Grouped))
}

#[test]
fn completions_of_all_members_come_with_their_keys() {
    let stage = Stage::new(&small());
    let group = Group::new();
    let pairs: Vec<_> = (0..5).map(|_| stage.pair()).collect();
    for (_, far) in &pairs {
        group.add(far).unwrap();
    }
    for (near, far) in &pairs {
        near.send(b"question").unwrap();
        assert_eq!(message(&group), (far.info().id, b"question".to_vec()));
        far.send(Outgoing::from(b"answer").with_id(3)).unwrap();
        assert_eq!(near.recv_timeout(TIME_LIMIT).unwrap(), b"answer");
        let (key, sent) = next(&group);
        assert_eq!(key, far.info().id);
        assert!(matches!(sent, Completion::Sent(3)));
    }
    for (near, far) in &pairs {
        near.close().unwrap();
        let (key, end) = next(&group);
        assert_eq!(key, far.info().id);
        let expected = matches!(end, Completion::Disconnected(CloseReason::PeerClosed));
        assert!(expected, "{end:?}");
        assert!(
            !group.remove(far),
            "the end must remove the endpoint from its group"
        );
        assert!(matches!(far.recv(), Err(Error::Disconnected(_))));
    }
    assert!(group.completions().is_empty());
}

#[test]
fn earlier_completions_come_first_and_once() {
    let (near, far) = pair();
    far.send(Outgoing::from(b"x").with_id(1)).unwrap();
    near.recv_timeout(TIME_LIMIT).unwrap();
    // The completion of the send can become available after the peer has received the message. Wait
    // until the completion is available.
    let mut sent = Select::new();
    sent.recv(far.completions());
    sent.ready_timeout(TIME_LIMIT).unwrap();
    near.send(b"first").unwrap();
    // `recv_timeout` skips the completion of the send, which stays queued at `far` for the group.
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"first");
    for number in 0..9_u8 {
        near.send(&[number]).unwrap();
    }
    near.flush().unwrap();
    let group = Group::default();
    group.add_with_key(&far, 77).unwrap();
    near.send(&[9]).unwrap();
    let (key, first) = next(&group);
    assert_eq!(key, 77);
    assert!(matches!(first, Completion::Sent(1)), "{first:?}");
    for number in 0..10 {
        assert_eq!(message(&group), (77, vec![number]));
    }
    assert!(group.completions().is_empty());
    assert!(group.remove(&far));
    assert!(!group.remove(&far));
    near.send(b"after").unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"after");
}

#[test]
fn recv_of_endpoint_in_group_fails() {
    let (near, far) = pair();
    let waiting = {
        let far = far.clone();
        thread::spawn(move || is_grouped(far.recv()))
    };
    let (group, other) = (Group::new(), Group::new());
    group.add(&far).unwrap();
    assert!(
        waiting.join().unwrap(),
        "`add` must wake the thread that waits for the endpoint"
    );
    assert!(is_grouped(far.try_recv()));
    assert!(is_grouped(far.try_next_completion()));
    assert!(is_grouped(far.next_completion()));
    assert!(is_grouped(group.add(&far)), "a second `add` must fail");
    assert!(
        is_grouped(other.add(&far)),
        "an endpoint in a group must not join another group"
    );
    assert!(!other.remove(&far));
    near.send(b"x").unwrap();
    assert_eq!(message(&group).1, b"x");
    // An endpoint in a group supports all calls except receive calls.
    far.send(b"y").unwrap();
    far.flush().unwrap();
    assert_eq!(near.recv_timeout(TIME_LIMIT).unwrap(), b"y");
    far.close().unwrap();
    let (_, end) = next(&group);
    assert!(matches!(end, Completion::Disconnected(_)), "{end:?}");
}

#[test]
fn ended_connection_joins_group_until_end_is_taken() {
    let (near, far) = pair();
    near.send(b"last").unwrap();
    near.close().unwrap();
    let group = Group::new();
    group.add_with_key(&far, 5).unwrap();
    assert_eq!(message(&group), (5, b"last".to_vec()));
    assert!(matches!(next(&group), (5, Completion::Disconnected(_))));
    let late = group.add(&far);
    assert!(matches!(late, Err(Error::Disconnected(_))), "{late:?}");
    assert!(!group.remove(&far));
}

#[test]
fn members_of_dropped_group_work_alone() {
    let (near, far) = pair_with(&small());
    let group = Group::new();
    group.add(&far).unwrap();
    // These messages fill the window. When the last handle of the group is dropped, the group drops
    // the messages, which returns their credits.
    for _ in 0..4 {
        near.send(b"not taken").unwrap();
    }
    near.flush().unwrap();
    drop(group.clone());
    assert!(
        is_grouped(far.try_recv()),
        "the group must keep its members while it has another handle"
    );
    drop(group);
    for number in 0..9_u8 {
        near.send(&[number]).unwrap();
        assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), &[number]);
    }
    Group::new().add(&far).unwrap();
}

#[test]
fn dropped_endpoint_in_group_is_closed() {
    let (near, far) = pair();
    let group = Group::new();
    group.add(&far).unwrap();
    near.send(b"before").unwrap();
    near.flush().unwrap();
    drop(far);
    let end = near.recv_timeout(TIME_LIMIT).unwrap_err();
    let expected = matches!(end, Error::Disconnected(CloseReason::PeerClosed));
    assert!(expected, "{end}");
    assert_eq!(message(&group).1, b"before");
    assert!(
        group.completions().is_empty(),
        "the dropped endpoint must have no further completions"
    );
}

#[test]
fn room_comes_through_the_group() {
    let (near, far) = pair_with(&small());
    let group = Group::new();
    group.add_with_key(&near, 1).unwrap();
    for _ in 0..3 {
        let mut sent = 0;
        while !matches!(near.try_send(b"x"), Err(TrySendError::Full)) {
            sent += 1;
        }
        assert!(group.completions().is_empty());
        for _ in 0..sent {
            far.recv_timeout(TIME_LIMIT).unwrap();
        }
        assert!(matches!(next(&group), (1, Completion::Room)));
    }
    assert!(group.completions().is_empty());
}

#[test]
fn taken_completion_permits_another_send_with_id() {
    let (near, far) = pair_with(&small());
    let reading = thread::spawn(move || while far.recv().is_ok() {});
    let group = Group::new();
    group.add(&near).unwrap();
    let mut sent = 0;
    let refused = loop {
        match near.send(Outgoing::from(b"x").with_id(sent)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::CompletionsNotTaken), "{refused}");
    for round in 0..3 * sent {
        let (_, completion) = next(&group);
        assert!(matches!(completion, Completion::Sent(id) if id == round));
        near.send(Outgoing::from(b"x").with_id(sent + round))
            .unwrap();
    }
    near.close().unwrap();
    reading.join().unwrap();
}

/// One thread moves the endpoint between two groups while messages arrive. Each group has its own
/// thread that receives messages.
#[test]
fn membership_changes_neither_lose_nor_duplicate() {
    const COUNT: u32 = 5_000;
    const SHORT: Duration = Duration::from_millis(5);
    let (near, far) = pair();
    let groups = [Group::new(), Group::new()];
    let done = AtomicBool::new(false);
    let seen = |completion: Completion| match completion {
        Completion::Received(message) => Some(u32::from_be_bytes((*message).try_into().unwrap())),
        _ => None,
    };
    let all: Vec<Vec<u32>> = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                near.send(&number.to_be_bytes()).unwrap();
            }
            near.flush().unwrap();
            done.store(true, Ordering::Release);
        });
        let mover = scope.spawn(|| {
            let mut own = Vec::new();
            let mut moves = 0;
            while !done.load(Ordering::Acquire) {
                let group = &groups[moves % 2];
                group.add(&far).unwrap();
                thread::yield_now();
                assert!(group.remove(&far));
                if moves % 3 == 0
                    && let Some(completion) = far.try_next_completion().unwrap()
                {
                    own.extend(seen(completion));
                }
                moves += 1;
            }
            // Some messages may still be queued at the endpoint itself. Receive them through this
            // group.
            groups[0].add(&far).unwrap();
            far.close().unwrap();
            own
        });
        let takes: [fn(&Group) -> Option<Completion>; 2] = [
            |group| Some(group.completions().recv_timeout(SHORT).ok()?.1),
            |group| Some(group.next_completion_timeout(SHORT).ok()?.1),
        ];
        let takers = [0, 1].map(|place| {
            let (group, take, done) = (&groups[place], takes[place], &done);
            scope.spawn(move || {
                let mut numbers = Vec::new();
                loop {
                    let last = done.load(Ordering::Acquire);
                    while let Some(completion) = take(group) {
                        numbers.extend(seen(completion));
                    }
                    if last {
                        break numbers;
                    }
                }
            })
        });
        let mut all: Vec<Vec<u32>> = takers.into_iter().map(|t| t.join().unwrap()).collect();
        all.push(mover.join().unwrap());
        // Receive the completions that arrived after each thread's final check of its group.
        for group in &groups {
            all.push(
                group
                    .completions()
                    .try_iter()
                    .filter_map(|(_, completion)| seen(completion))
                    .collect(),
            );
        }
        all
    });
    for numbers in &all {
        assert!(
            numbers.is_sorted(),
            "each thread must receive its messages in order"
        );
    }
    let mut numbers: Vec<u32> = all.concat();
    numbers.sort_unstable();
    assert!(
        numbers.into_iter().eq(0..COUNT),
        "each message must arrive once"
    );
}

#[test]
fn all_simultaneous_ends_are_reported() {
    let stage = Stage::new(&small());
    let group = Group::new();
    let mut near = Vec::new();
    let mut far: HashMap<u64, Endpoint> = HashMap::new();
    // Use only 20 connections, because software iWARP supports only a few more in one process.
    for key in 0..20 {
        let (here, there) = stage.pair();
        group.add_with_key(&there, key).unwrap();
        near.push(here);
        far.insert(key, there);
    }
    for here in &near {
        here.send(b"last").unwrap();
    }
    drop(near);
    let mut last = 0;
    while !far.is_empty() {
        match next(&group) {
            (key, Completion::Received(_)) => {
                assert!(far.contains_key(&key));
                last += 1;
            }
            (key, Completion::Disconnected(reason)) => {
                assert_eq!(reason, CloseReason::PeerClosed);
                assert!(far.remove(&key).is_some(), "each connection must end once");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(last, 20);
}

#[test]
fn several_threads_wait_for_a_group() {
    const THREADS: usize = 3;
    const MESSAGES: usize = 300;
    let stage = Stage::new(&small());
    let group = Group::new();
    let pairs: Vec<_> = (0..4).map(|_| stage.pair()).collect();
    let (sender, taken) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (sender, group) = (sender.clone(), &group);
            scope.spawn(move || {
                while let (key, Completion::Received(message)) = next(group) {
                    sender.send((key, message.into_vec())).unwrap();
                }
            });
        }
        // The endpoints join the group while the threads wait.
        for (near, far) in &pairs {
            group.add(far).unwrap();
            scope.spawn(|| {
                for number in 0..MESSAGES {
                    near.send(&number.to_be_bytes()).unwrap();
                }
            });
        }
        let mut all: HashMap<u64, Vec<Vec<u8>>> = HashMap::new();
        for _ in 0..pairs.len() * MESSAGES {
            let (key, message) = taken.recv_timeout(TIME_LIMIT).unwrap();
            all.entry(key).or_default().push(message);
        }
        for (_, far) in &pairs {
            let mut messages = all.remove(&far.info().id).unwrap();
            messages.sort_unstable();
            let expected = (0..MESSAGES).map(|number| number.to_be_bytes().to_vec());
            assert!(
                messages.into_iter().eq(expected),
                "each message must arrive once"
            );
        }
        // Each thread exits when it receives the completion that reports the end of a connection.
        for (near, _) in &pairs[..THREADS] {
            near.close().unwrap();
        }
    });
}

#[test]
fn waiting_thread_and_channel_take_turns() {
    let stage = Stage::new(&small());
    let group = Group::new();
    let pairs: Vec<_> = (0..3).map(|_| stage.pair()).collect();
    for (_, far) in &pairs {
        group.add(far).unwrap();
    }
    for round in 0..20_u8 {
        for (near, far) in &pairs {
            near.send(&[round]).unwrap();
            let (key, completion) = if round % 2 == 0 {
                next(&group)
            } else {
                group.completions().recv_timeout(TIME_LIMIT).unwrap()
            };
            assert_eq!(key, far.info().id);
            assert!(matches!(completion, Completion::Received(message) if *message == [round]));
        }
    }
}

#[test]
fn member_is_served_while_no_thread_waits() {
    let stage = Stage::new(&small());
    let (near, far) = stage.pair();
    let group = Group::new();
    group.add(&far).unwrap();
    near.send(b"first").unwrap();
    assert_eq!(message(&group).1, b"first");
    // No thread of the program waits for the group. The engine receives the large messages for the
    // far endpoint, and confirms the close.
    for _ in 0..3 {
        near.send(&[7; 5000]).unwrap();
    }
    near.close().unwrap();
    for _ in 0..3 {
        assert_eq!(message(&group).1, [7; 5000]);
    }
    assert!(matches!(next(&group).1, Completion::Disconnected(_)));
}

#[test]
fn try_next_completion_polls_the_members() {
    let (near, far) = pair();
    let group = Group::new();
    assert!(group.try_next_completion().unwrap().is_none());
    let expired = group.next_completion_timeout(Duration::from_millis(1));
    assert!(matches!(expired, Err(Error::TimedOut)), "{expired:?}");
    group.add(&far).unwrap();
    assert!(group.try_next_completion().unwrap().is_none());
    near.send(b"x").unwrap();
    loop {
        match group.try_next_completion().unwrap() {
            Some((_, Completion::Received(message))) => break assert_eq!(*message, *b"x"),
            Some(other) => panic!("{other:?}"),
            None => thread::yield_now(),
        }
    }
}
