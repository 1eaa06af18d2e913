use std::thread;

use rdmsg::{Error, SendBuffer};

use crate::stage::{TIME_LIMIT, pair, pair_with, pattern, small};

#[test]
fn large_messages_arrive_whole_in_both_directions() {
    let (near, far) = pair();
    let run = |endpoint: rdmsg::Endpoint| {
        let sending = endpoint.clone();
        let sender = thread::spawn(move || {
            for len in [3_000_001, 1_100_000, 5 << 20] {
                sending.send(&pattern(len)).unwrap();
            }
        });
        for len in [3_000_001, 1_100_000, 5 << 20] {
            let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
            assert!(*message == pattern(len)[..], "{len}");
        }
        sender.join().unwrap();
        endpoint
    };
    let other = thread::spawn(move || run(far));
    let near = run(near);
    let _far = other.join().unwrap();
    assert_eq!(near.statistics().large_received, 3);
}

#[test]
fn large_message_is_sent_from_send_buffer() {
    let (near, far) = pair();
    let mut buffer = SendBuffer::new(&near, 1 << 20).unwrap();
    buffer.copy_from_slice(&pattern(1 << 20));
    near.send(buffer).unwrap();
    assert!(*far.recv_timeout(TIME_LIMIT).unwrap() == pattern(1 << 20)[..]);
}

#[test]
fn buffer_of_another_connection_is_refused() {
    let (near, _far) = pair();
    let (other, _other_far) = pair();
    let mut buffer = SendBuffer::new(&near, 100_000).unwrap();
    let error = other.send(&mut buffer).unwrap_err();
    assert!(matches!(error, Error::ForeignMemory));
    assert_eq!(buffer.len(), 100_000);
}

#[test]
fn small_message_waits_for_earlier_large_message() {
    let (near, far) = pair_with(&small());
    for number in 0..20_u8 {
        near.send(&vec![number; if number % 2 == 0 { 50_000 } else { 10 }])
            .unwrap();
        let message = far.recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(message[0], number);
    }
}
