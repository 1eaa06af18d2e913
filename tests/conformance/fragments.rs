//! Tests of messages that are sent in several frames.

use std::io::IoSlice;

use rdmsg::{Completion, Outgoing, SendBuffer};

use crate::stage::{TIME_LIMIT, pair, pair_with, pattern, small};

#[test]
fn messages_near_frame_lengths_arrive_whole() {
    let (near, far) = pair();
    let frame = near.info().negotiated.unwrap().send_eager as usize;
    let lens = [1, 2, 3, 4, 8, 15, 16, 17].map(|frames| frames * frame);
    for (id, len) in (0..).zip(lens.into_iter().flat_map(|len| len - 1..=len + 1)) {
        let bytes = pattern(len);
        let (first, rest) = bytes.split_at(len / 3);
        let parts = [first, &[], rest].map(IoSlice::new);
        near.send(Outgoing::parts(&parts).with_id(id)).unwrap();
        let message = far.recv_timeout(TIME_LIMIT).unwrap();
        assert!(
            *message == bytes[..],
            "the message of {len} bytes must arrive unchanged"
        );
        let sent = near.next_completion_timeout(TIME_LIMIT).unwrap();
        assert!(matches!(sent, Completion::Sent(of) if of == id), "{sent:?}");
    }
    let len = 2 * frame + 1;
    let mut buffer = SendBuffer::new(&near, len).unwrap();
    buffer.copy_from_slice(&pattern(len));
    near.send(buffer).unwrap();
    assert!(*far.recv_timeout(TIME_LIMIT).unwrap() == pattern(len)[..]);
}

/// The message has 2500 parts, but one system call accepts at most 1024 parts.
#[test]
fn fragments_of_very_many_parts_arrive_whole() {
    let (near, far) = pair_with(&small());
    let bytes = pattern(2500);
    let parts: Vec<_> = bytes.chunks(1).map(IoSlice::new).collect();
    near.send(Outgoing::parts(&parts)).unwrap();
    assert!(*far.recv_timeout(TIME_LIMIT).unwrap() == bytes[..]);
}

#[test]
fn fragments_keep_their_order_among_other_messages() {
    let (near, far) = pair_with(&small());
    let lens = [10, 1001, 0, 2500, 3000, 900, 200_000, 1500];
    let senders = [&near, &far];
    std::thread::scope(|scope| {
        for from in senders {
            scope.spawn(move || {
                for number in 0..200 {
                    from.send(&pattern(lens[number % lens.len()])).unwrap();
                }
            });
        }
        for number in 0..200 {
            let len = lens[number % lens.len()];
            for to in senders {
                let message = to.recv_timeout(TIME_LIMIT).unwrap();
                assert!(
                    *message == pattern(len)[..],
                    "message {number} must arrive unchanged and in order"
                );
            }
        }
    });
}

#[test]
fn held_messages_in_fragments_keep_no_credits() {
    let (near, far) = pair_with(&small());
    // Each message occupies two of the four credits until the receiver's library has copied the
    // message's bytes. A message that the program holds occupies no credit.
    let held: Vec<_> = (0..4)
        .map(|_| {
            near.send(&pattern(2000)).unwrap();
            far.recv_timeout(TIME_LIMIT).unwrap()
        })
        .collect();
    near.send(b"short").unwrap();
    assert_eq!(*far.recv_timeout(TIME_LIMIT).unwrap(), *b"short");
    assert!(held.iter().all(|message| **message == pattern(2000)[..]));
    assert_eq!(near.statistics().large_sent, 0);
}

#[test]
fn message_without_fragment_credits_is_announced() {
    let config = small().with(|config| config.receive_window = Some(1));
    let (near, far) = pair_with(&config);
    for _ in 0..3 {
        near.send(&pattern(2000)).unwrap();
        assert!(*far.recv_timeout(TIME_LIMIT).unwrap() == pattern(2000)[..]);
    }
    assert_eq!(near.statistics().large_sent, 3);
}

#[test]
fn message_in_fragments_arrives_before_a_close() {
    let (near, far) = pair_with(&small());
    near.send(&pattern(2500)).unwrap();
    let closing = std::thread::spawn(move || near.close());
    assert!(*far.recv_timeout(TIME_LIMIT).unwrap() == pattern(2500)[..]);
    closing.join().unwrap().unwrap();
}
