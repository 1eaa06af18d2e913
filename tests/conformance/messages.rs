use std::{io::IoSlice, thread, time::Duration};

use rdmsg::{Completion, Error, Outgoing, SendBuffer, TrySendError};

use crate::stage::{TIME_LIMIT, pair, pair_with, pattern, small};

#[test]
fn messages_of_every_size_arrive_whole_and_in_order() {
    let (near, far) = pair();
    let sizes = [
        0,
        1,
        63,
        64,
        4096,
        16 << 10,
        (16 << 10) + 1,
        64 << 10,
        1 << 20,
    ];
    let echo = thread::spawn(move || {
        for _ in sizes {
            let message = far.recv().unwrap();
            far.send(&message).unwrap();
        }
        far.close().unwrap();
    });
    for len in sizes {
        near.send(&pattern(len)).unwrap();
    }
    for len in sizes {
        let message = near.recv().unwrap();
        assert!(*message == pattern(len)[..], "{len}");
        assert_eq!(message.into_vec().len(), len);
    }
    drop(near);
    echo.join().unwrap();
}

#[test]
fn messages_flow_both_ways_at_once() {
    const COUNT: u32 = 3000;
    let (near, far) = pair();
    let run = |endpoint: rdmsg::Endpoint| {
        let sending = endpoint.clone();
        let sender = thread::spawn(move || {
            for number in 0..COUNT {
                sending.send(&number.to_be_bytes()).unwrap();
            }
        });
        for number in 0..COUNT {
            let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
            assert_eq!(*message, number.to_be_bytes());
        }
        sender.join().unwrap();
        endpoint
    };
    let other = thread::spawn(move || run(far));
    let near = run(near);
    let far = other.join().unwrap();
    let (sent, received) = (near.statistics(), far.statistics());
    assert_eq!(sent.messages_sent, COUNT.into());
    assert_eq!(received.messages_received, COUNT.into());
    assert_eq!(received.bytes_received, 4 * u64::from(COUNT));
}

#[test]
fn parts_are_joined() {
    let (near, far) = pair();
    near.send(Outgoing::parts(&[
        IoSlice::new(b"one, "),
        IoSlice::new(b""),
        IoSlice::new(b"two"),
    ]))
    .unwrap();
    assert_eq!(*far.recv().unwrap(), *b"one, two");
}

#[test]
fn empty_receive_is_reported_without_effect() {
    let (near, far) = pair();
    assert!(far.try_recv().unwrap().is_none());
    let waited = far.recv_timeout(Duration::from_millis(20));
    assert!(matches!(waited, Err(Error::TimedOut)));
    near.send(b"late").unwrap();
    near.flush().unwrap();
    assert_eq!(*far.try_recv().unwrap().unwrap(), *b"late");
}

#[test]
fn full_window_is_reported_until_messages_are_dropped() {
    let (near, far) = pair_with(&small());
    let mut sent = 0_u8;
    while match near.try_send(&[sent]) {
        Ok(()) => true,
        Err(TrySendError::Full) => false,
        Err(other) => panic!("{other}"),
    } {
        sent += 1;
        // The far side receives no messages, so it returns no credits.
        assert!(
            sent <= 4,
            "a window of 4 messages must refuse further messages"
        );
    }
    let waited = near.send_timeout(b"no room", Duration::from_millis(20));
    assert!(matches!(waited, Err(Error::TimedOut)));
    for number in 0..sent {
        assert_eq!(*far.recv().unwrap(), [number]);
    }
    near.send_timeout(b"room", TIME_LIMIT).unwrap();
    assert_eq!(*far.recv().unwrap(), *b"room");
}

#[test]
fn try_send_and_send_timeout_accept_each_outgoing() {
    let (near, far) = pair_with(&small());
    let parts = [IoSlice::new(b"par"), IoSlice::new(b"ts")];
    near.try_send(Outgoing::parts(&parts)).unwrap();
    near.send_timeout(Outgoing::parts(&parts), TIME_LIMIT)
        .unwrap();
    near.try_send(Outgoing::from(b"one").with_id(1)).unwrap();
    near.send_timeout(Outgoing::from(b"two").with_id(2), TIME_LIMIT)
        .unwrap();
    let mut buffer = SendBuffer::new(&near, 3).unwrap();
    buffer.fill(7);
    let full = near.try_send(&mut buffer).unwrap_err();
    assert!(full.is_full());
    let late = near.send_timeout(&mut buffer, Duration::from_millis(20));
    assert!(matches!(late, Err(Error::TimedOut)));
    assert_eq!(*buffer, [7; 3], "the buffer must keep an unsent message");
    let full = near
        .try_send(Outgoing::from(b"three").with_id(3))
        .unwrap_err();
    assert!(full.is_full());
    assert_eq!(
        std::io::Error::from(full).kind(),
        std::io::ErrorKind::WouldBlock
    );
    assert!(
        near.try_send(Outgoing::parts(&parts))
            .unwrap_err()
            .is_full()
    );
    for expected in [&b"parts"[..], b"parts", b"one", b"two"] {
        assert_eq!(far.recv().unwrap(), *expected);
    }
    near.send_timeout(&mut buffer, TIME_LIMIT).unwrap();
    assert_eq!(buffer.len(), 0, "the send must empty the buffer");
    assert_eq!(*far.recv().unwrap(), [7; 3]);
    for id in 1..=2 {
        let completion = near.next_completion_timeout(TIME_LIMIT).unwrap();
        assert!(matches!(completion, Completion::Sent(sent) if sent == id));
    }
}

#[test]
fn messages_are_compared_as_bytes() {
    let (near, far) = pair();
    near.send(b"bytes").unwrap();
    near.send(b"bytes").unwrap();
    let (one, other) = (far.recv().unwrap(), far.recv().unwrap());
    assert_eq!(one, other);
    assert_eq!(one, b"bytes");
    assert_eq!(one, *b"bytes");
    assert_eq!(one, &b"bytes"[..]);
    assert_eq!(one, b"bytes".to_vec());
    assert_ne!(one, b"byte");
}

#[test]
fn too_long_message_is_refused_without_ending() {
    let mut config = small();
    config.max_message = 5000;
    let (near, far) = pair_with(&config);
    assert_eq!(near.info().send_limit, 5000);
    let refused = near.send(&[0; 5001]).unwrap_err();
    let expected = matches!(
        refused,
        Error::MessageTooLong {
            len: 5001,
            limit: 5000
        }
    );
    assert!(expected, "{refused}");
    near.send(&[7; 5000]).unwrap();
    assert_eq!(far.recv().unwrap().len(), 5000);
}

#[test]
fn flush_confirms_arrival_at_peer_library() {
    let (near, far) = pair();
    near.send(b"first").unwrap();
    near.flush_timeout(TIME_LIMIT).unwrap();
    assert_eq!(
        far.statistics().messages_received,
        1,
        "an unread message must count as received"
    );
    drop(far.recv().unwrap());
}

#[test]
fn sent_with_an_id_is_reported_in_order() {
    let (near, far) = pair();
    near.send(Outgoing::from(b"small").with_id(1)).unwrap();
    near.send(Outgoing::from(&pattern(100_000)).with_id(2))
        .unwrap();
    let mut buffer = SendBuffer::new(&near, 10).unwrap();
    buffer.fill(3);
    buffer.truncate(4);
    near.send(Outgoing::from(buffer).with_id(3)).unwrap();
    for len in [5, 100_000, 4] {
        assert_eq!(far.recv().unwrap().len(), len);
    }
    for id in 1..=3 {
        match near.next_completion_timeout(TIME_LIMIT).unwrap() {
            Completion::Sent(sent) => assert_eq!(sent, id),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_batch_arrives_as_its_messages() {
    let (near, far) = pair();
    let lens = [
        0,
        1,
        63,
        4096,
        (16 << 10) + 1,
        5,
        12_000,
        12_000,
        100 << 10,
        7,
    ];
    let bytes: Vec<_> = lens.iter().map(|len| pattern(*len)).collect();
    let messages: Vec<_> = bytes.iter().map(|bytes| IoSlice::new(bytes)).collect();
    assert_eq!(near.send_batch(&[]).unwrap(), 0);
    let echo = thread::spawn(move || {
        let batch: Vec<_> = lens.map(|_| far.recv().unwrap()).into();
        // Send the batch directly from the memory of the held messages, without copying the bytes
        // first.
        let messages: Vec<_> = batch.iter().map(|message| IoSlice::new(message)).collect();
        assert_eq!(far.send_batch(&messages).unwrap(), lens.len());
        far.close().unwrap();
    });
    assert_eq!(near.send_batch(&messages).unwrap(), lens.len());
    for bytes in &bytes {
        assert!(*near.recv().unwrap() == bytes[..], "{}", bytes.len());
    }
    echo.join().unwrap();
    assert_eq!(near.statistics().messages_sent, lens.len() as u64);
    assert_eq!(
        near.statistics().bytes_received,
        lens.iter().sum::<usize>() as u64
    );
}

#[test]
fn batch_uses_one_window_place_per_message() {
    let (near, far) = pair_with(&small());
    let window = usize::from(near.info().negotiated.unwrap().send_window);
    let messages = vec![IoSlice::new(b"message"); window + 2];
    let sent = near.send_batch(&messages[..window]).unwrap();
    assert_eq!(sent, window);
    let mut held: Vec<_> = (0..sent).map(|_| far.recv().unwrap()).collect();
    // A held message uses only its own credit, even if it shares its memory with other messages.
    let last = held.pop().unwrap();
    drop(held);
    let rest = window - 1;
    assert_eq!(near.send_batch(&messages[..rest]).unwrap(), rest);
    for _ in 0..rest {
        assert_eq!(*far.recv().unwrap(), *b"message");
    }
    assert_eq!(*last, *b"message");
    near.close().unwrap();
}

#[test]
fn batch_is_sent_as_far_as_possible() {
    let (near, far) = pair_with(&small());
    let limit = near.info().send_limit as usize;
    let long = vec![0; limit + 1];
    let messages = [&b"one"[..], b"two", &long, b"three"].map(IoSlice::new);
    assert_eq!(near.send_batch(&messages).unwrap(), 2);
    let error = near.send_batch(&messages[2..]).unwrap_err();
    assert!(matches!(error, Error::MessageTooLong { .. }), "{error}");
    assert_eq!(near.send_batch(&messages[3..]).unwrap(), 1);
    for text in [&b"one"[..], b"two", b"three"] {
        assert_eq!(*far.recv().unwrap(), *text);
    }
    far.abort(3);
    while near.send_batch(&messages[..1]).is_ok() {}
    let error = near.send_batch(&messages[..1]).unwrap_err();
    assert!(matches!(error, Error::Disconnected(_)), "{error}");
}
