//! Tests messages that are longer than the eager size. The receiver reads them from the sender's
//! memory.
#![allow(unsafe_code)]

use std::{io::IoSlice, process::Command, ptr, slice, thread, time::Duration};

use nix::libc;
use rdmsg::{CloseReason, Completion, Config, Error, Outgoing, SendBuffer, TrySendError};
use toolbox::{DeviceTest, TIME_LIMIT, connect, pair, pair_with, patient, pattern, reason};

#[test]
fn any_size_arrives_whole_and_in_order() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let eager = client.info().negotiated.unwrap().send_eager as usize;
    // Test sizes around each limit: the eager size, the device's page size, the smallest buffer,
    // and the maximum length of a READ.
    let sizes: Vec<usize> = [0, 1, 4096, eager, 64 << 10, 1 << 20, 3 << 20]
        .into_iter()
        .flat_map(|size: usize| [size.saturating_sub(1), size, size + 1])
        .collect();
    let sender = thread::spawn({
        let (client, sizes) = (client.clone(), sizes.clone());
        move || {
            for (number, &len) in (0..).zip(sizes.iter().cycle().take(3 * sizes.len())) {
                client.send(&pattern(number, len)).unwrap();
            }
        }
    });
    for (number, &len) in (0..).zip(sizes.iter().cycle().take(3 * sizes.len())) {
        let message = server.recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(message.len(), len, "message {number}");
        assert!(
            *message == *pattern(number, len),
            "message {number} of {len} bytes"
        );
    }
    sender.join().unwrap();
    client.close().unwrap();
    assert_eq!(
        reason(server.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
}

#[test]
fn both_directions_carry_large_messages_at_once() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let talk = |endpoint: rdmsg::Endpoint| {
        let sender = thread::spawn({
            let endpoint = endpoint.clone();
            move || {
                for number in 0..60 {
                    let len = if number % 3 == 0 {
                        100
                    } else {
                        50_000 * number as usize
                    };
                    endpoint.send(&pattern(number, len)).unwrap();
                }
            }
        });
        for number in 0..60 {
            let len = if number % 3 == 0 {
                100
            } else {
                50_000 * number as usize
            };
            let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
            assert!(*message == *pattern(number, len), "message {number}");
        }
        sender.join().unwrap();
        endpoint
    };
    let other = thread::spawn(move || talk(server));
    let client = talk(client);
    let server = other.join().unwrap();
    client.close().unwrap();
    drop(server);
}

#[test]
fn a_gibibyte_in_one_message() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    assert_eq!(client.info().send_limit, 1 << 30);
    let mut buffer = SendBuffer::new(&client, (1 << 30) + 1).unwrap();
    let refused = client.send(&mut buffer).unwrap_err();
    assert!(matches!(
        refused,
        Error::MessageTooLong {
            limit: 0x4000_0000,
            ..
        }
    ));
    buffer.truncate(1 << 30);
    for (number, page) in buffer.chunks_mut(4096).enumerate() {
        page[..8].copy_from_slice(&(number as u64).to_le_bytes());
        page[4088..].copy_from_slice(&(!number as u64).to_le_bytes());
    }
    client.send(Outgoing::from(buffer).with_id(77)).unwrap();
    let message = server.recv_timeout(Duration::from_secs(120)).unwrap();
    assert_eq!(message.len(), 1 << 30);
    for (number, page) in message.chunks(4096).enumerate() {
        assert_eq!(page[..8], (number as u64).to_le_bytes());
        assert_eq!(page[4088..], (!number as u64).to_le_bytes());
    }
    drop(message);
    let sent = client.next_completion_timeout(TIME_LIMIT).unwrap();
    assert!(matches!(sent, Completion::Sent(77)), "{sent:?}");
    client.close().unwrap();
}

#[test]
fn unread_large_messages_respect_memory_limit() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.large_memory = 4 << 20;
    config.registration_cache = 0;
    let (client, server) = pair_with(&config);
    let before = locked_kib();
    // The receiver can hold four messages, and the sender can announce four more.
    for number in 0..8 {
        let message = pattern(number, 1 << 20);
        client.send_timeout(&message, TIME_LIMIT).unwrap();
    }
    let ninth = client.send_timeout(&pattern(8, 1 << 20), Duration::from_secs(1));
    assert!(matches!(ninth, Err(Error::TimedOut)), "{ninth:?}");
    // Only the memory of the announced messages is still locked. The receiver has deregistered the
    // memory of the messages that it holds.
    let locked = locked_kib() - before;
    assert!((3 << 10..=5 << 10).contains(&locked), "{locked} KiB");
    assert_eq!(server.statistics().large_bytes_held, 4 << 20);
    assert!(matches!(
        client.try_send(&[1; 1 << 20]),
        Err(TrySendError::Full)
    ));
    client.try_send(b"small ones pass, in their turn").unwrap();
    for number in 0..8 {
        let message = server.recv_timeout(TIME_LIMIT).unwrap();
        assert!(*message == *pattern(number, 1 << 20), "message {number}");
    }
    assert_eq!(
        *server.recv_timeout(TIME_LIMIT).unwrap(),
        *b"small ones pass, in their turn"
    );
    client.flush_timeout(TIME_LIMIT).unwrap();
    assert!(
        locked_kib() <= before + 64,
        "the sender must unlock all memory"
    );
    client.close().unwrap();
}

/// Returns the amount of memory that this process has registered with devices (VmPin), in KiB.
fn locked_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmPin:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn single_message_may_exceed_large_memory() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.large_memory = 64 << 10;
    config.receive_window = Some(1);
    config.send_depth = Some(1);
    let (client, server) = pair_with(&config);
    let sender = thread::spawn({
        let client = client.clone();
        move || (0..10).for_each(|number| client.send(&pattern(number, 300_000)).unwrap())
    });
    for number in 0..10 {
        assert!(*server.recv_timeout(TIME_LIMIT).unwrap() == *pattern(number, 300_000));
    }
    sender.join().unwrap();
    server.close().unwrap();
}

#[test]
fn owned_and_vectored_messages_arrive_unchanged() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    for len in [0, 1, 200, 300, 10_000, 16384, 16385, 200_000] {
        let expected = pattern(9, len);
        let mut buffer = SendBuffer::new(&client, len).unwrap();
        buffer.copy_from_slice(&expected);
        client.send(buffer).unwrap();
        let (head, tail) = expected.split_at(len / 3);
        let parts = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)];
        client.send(Outgoing::parts(&parts)).unwrap();
        for _ in 0..2 {
            assert!(
                *server.recv_timeout(TIME_LIMIT).unwrap() == *expected,
                "{len}"
            );
        }
    }
    let mut foreign = SendBuffer::new(&client, 10).unwrap();
    let refused = server.send(&mut foreign).unwrap_err();
    assert!(matches!(refused, Error::ForeignMemory), "{refused:?}");
    assert_eq!(foreign.len(), 10);
    client.close().unwrap();
}

/// Maps `len` bytes of address space. The mapping uses no physical memory, because nothing accesses
/// the bytes.
fn map_unbacked(len: usize) -> &'static [u8] {
    const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the address argument is null, so the kernel chooses an unused range, and the call
    // changes no existing mapping.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ, FLAGS, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: `start` is a mapping of `len` bytes, which are zero. It is never written and never
    // unmapped, so it can be borrowed for `'static`.
    unsafe { slice::from_raw_parts(start.cast(), len) }
}

#[test]
fn overflowing_sum_of_parts_is_too_long() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let unbacked = map_unbacked(1 << 46);
    // The sum of the lengths is 2⁶⁴ + 15 bytes.
    let mut parts = vec![IoSlice::new(unbacked); 1 << 18];
    parts.push(IoSlice::new(&unbacked[..15]));
    let error = client.send(Outgoing::parts(&parts)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::MessageTooLong {
                len: usize::MAX,
                ..
            }
        ),
        "{error:?}"
    );
    // Now the sum modulo 2⁶⁴ is above the eager size.
    parts.push(IoSlice::new(&unbacked[..100_000]));
    let error = client.send(Outgoing::parts(&parts)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::MessageTooLong {
                len: usize::MAX,
                ..
            }
        ),
        "{error:?}"
    );
    client.send(b"and it goes on").unwrap();
    assert_eq!(
        *server.recv_timeout(TIME_LIMIT).unwrap(),
        *b"and it goes on"
    );
    client.close().unwrap();
}

#[test]
fn each_id_is_reported_once() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let reader = thread::spawn(move || {
        let mut count = 0;
        while server.recv().is_ok() {
            count += 1;
        }
        count
    });
    let mut open = std::collections::BTreeSet::new();
    for id in 0..300 {
        let len = if id % 7 == 0 {
            100_000
        } else {
            10 * id as usize
        };
        loop {
            match client.send(Outgoing::from(&pattern(id, len)).with_id(id)) {
                Ok(()) => break,
                Err(Error::CompletionsNotTaken) => {
                    let done = client.next_completion_timeout(TIME_LIMIT).unwrap();
                    let Completion::Sent(id) = done else {
                        panic!("{done:?}")
                    };
                    assert!(open.remove(&id), "{id} completed twice");
                }
                Err(error) => panic!("{error}"),
            }
        }
        open.insert(id);
    }
    client.flush_timeout(TIME_LIMIT).unwrap();
    while !open.is_empty() {
        let done = client.next_completion_timeout(TIME_LIMIT).unwrap();
        let Completion::Sent(id) = done else {
            panic!("{done:?}")
        };
        assert!(open.remove(&id), "{id} completed twice");
    }
    assert!(
        client.try_next_completion().unwrap().is_none(),
        "each message must complete only once"
    );
    client.close().unwrap();
    assert_eq!(reader.join().unwrap(), 300);
}

#[test]
fn unconfirmed_messages_are_reported_as_failed() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.large_memory = 1 << 20;
    let (client, server) = pair_with(&config);
    // The receiver has memory for the first message only. The receiver therefore cannot read the
    // second message.
    client
        .send(Outgoing::from(&pattern(0, 1 << 20)).with_id(1))
        .unwrap();
    server.send(b"x").unwrap();
    assert_eq!(*client.recv_timeout(TIME_LIMIT).unwrap(), *b"x");
    client.flush_timeout(TIME_LIMIT).unwrap();
    client
        .send(Outgoing::from(&pattern(0, 1 << 20)).with_id(2))
        .unwrap();
    server.abort(9);
    let completions: Vec<String> =
        std::iter::from_fn(|| client.next_completion_timeout(TIME_LIMIT).ok())
            .map(|completion| format!("{completion:?}"))
            .collect();
    assert_eq!(
        completions,
        [
            "Sent(1)",
            "Failed { id: 2, reason: PeerAborted(9) }",
            "Disconnected(PeerAborted(9))"
        ]
    );
}

#[test]
fn a_close_waits_for_large_messages_on_both_sides() {
    let _test = DeviceTest::start();
    for both in [false, true] {
        let (client, server) = pair();
        for number in 0..4 {
            client.send(&pattern(number, 5 << 20)).unwrap();
            server.send(&pattern(number, 4 << 20)).unwrap();
        }
        let closing = thread::spawn({
            let server = server.clone();
            move || both.then(|| server.close().unwrap())
        });
        client.close().unwrap();
        closing.join().unwrap();
        for number in 0..4 {
            assert!(*server.recv_timeout(TIME_LIMIT).unwrap() == *pattern(number, 5 << 20));
            assert!(*client.recv_timeout(TIME_LIMIT).unwrap() == *pattern(number, 4 << 20));
        }
        let end = reason(server.recv_timeout(TIME_LIMIT));
        let own = both && end == CloseReason::LocallyClosed;
        assert!(own || end == CloseReason::PeerClosed, "{end}");
    }
}

/// The sender's close times out before the receiver has memory for the second message. Neither side
/// may report an orderly close.
#[test]
fn truncated_conversation_is_no_clean_end() {
    let _test = DeviceTest::start();
    const LEN: usize = 2 << 20;
    let mut config = Config::default();
    config.large_memory = LEN as u64;
    config.close_timeout = Duration::from_millis(300);
    let (client, server) = pair_with(&config);
    client.send(&pattern(0, LEN)).unwrap();
    let held = server.recv_timeout(TIME_LIMIT).unwrap();
    // The receiver has no memory for this message, so the next message is queued behind it.
    client.send(&pattern(1, LEN)).unwrap();
    client.send(b"after it").unwrap();
    assert!(matches!(
        client.close(),
        Err(Error::Undelivered(CloseReason::LocallyClosed))
    ));
    let error = server.recv_timeout(TIME_LIMIT).unwrap_err();
    assert!(*held == *pattern(0, LEN));
    assert!(
        matches!(
            error,
            Error::Disconnected(CloseReason::Truncated { missing: 2 })
        ),
        "{error:?}"
    );
    assert!(
        matches!(
            server.close(),
            Err(Error::Disconnected(CloseReason::Truncated { .. })
                | Error::Undelivered(CloseReason::Truncated { .. }))
        ),
        "`close` must report the truncation, too"
    );
    assert_eq!(
        std::io::Error::from(error).kind(),
        std::io::ErrorKind::ConnectionReset
    );
}

#[test]
fn unread_messages_of_dropped_endpoint_allow_close() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.large_memory = 64 << 10;
    config.close_timeout = TIME_LIMIT;
    let (client, server) = pair_with(&config);
    // The client's library holds the first message, which uses up `large_memory`. The client
    // therefore cannot read the second message, which the server has announced.
    server.send(&pattern(0, 64 << 10)).unwrap();
    server.send(&pattern(1, 64 << 10)).unwrap();
    drop(client);
    assert_eq!(
        reason(server.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
    server.close().unwrap();
}

/// A process that sends large messages until it is killed during a transfer. The test
/// `sender_death_during_read_is_error_without_leak` runs it.
#[test]
#[ignore = "a part of another test"]
fn the_sender_that_dies() {
    let _test = DeviceTest::start();
    let address = std::env::var("ADDRESS").unwrap();
    let endpoint = connect(address.as_str()).unwrap();
    loop {
        endpoint.send(&pattern(0, 64 << 20)).unwrap();
    }
}

#[test]
fn sender_death_during_read_is_error_without_leak() {
    let lab = DeviceTest::start();
    let mut config = patient();
    config.large_memory = 256 << 20;
    let engine = rdmsg::Engine::new().unwrap();
    let listener = rdmsg::Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind(lab.at(0))
        .unwrap();
    let before = locked_kib();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["the_sender_that_dies", "--exact", "--ignored"])
        .env("ADDRESS", listener.local_addr().to_string())
        .spawn()
        .unwrap();
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let whole = pattern(0, 64 << 20);
    assert!(*server.recv_timeout(TIME_LIMIT).unwrap() == *whole);
    child.kill().unwrap();
    child.wait().unwrap();
    let reason = loop {
        match server.recv_timeout(TIME_LIMIT) {
            Ok(message) => assert!(*message == *whole, "a delivered message is incomplete"),
            Err(Error::Disconnected(reason)) => break reason,
            Err(error) => panic!("{error}"),
        }
    };
    // When a process is killed, the kernel deregisters the process's memory before it destroys the
    // process's queue pairs. A READ of that memory can therefore fail before the disconnect
    // arrives. The reported reason must nevertheless be the disconnect.
    assert_eq!(reason, CloseReason::PeerDisconnected);
    drop(server);
    drop(listener);
    engine.shutdown();
    assert!(
        locked_kib() <= before,
        "all new memory must be unlocked: {} KiB are locked, {before} KiB were locked before",
        locked_kib()
    );
}
