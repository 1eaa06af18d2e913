//! Tests messages between two endpoints of one process.

use std::{collections::VecDeque, thread, time::Duration};

use rdmsg::{
    CloseReason, Completion, Config, Endpoint, Error, Listener, Polling, TrySendError,
    crossbeam_channel::{self, select},
};
use toolbox::{DeviceTest, TIME_LIMIT, connect, pair, pair_with, patient, reason};

#[test]
fn messages_arrive_whole_and_in_order() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let sizes = [
        0, 1, 15, 16, 17, 64, 239, 240, 241, 4095, 4096, 16383, 16384,
    ];
    let sender = thread::spawn({
        let client = client.clone();
        move || {
            for round in 0..20_usize {
                for size in sizes {
                    let message: Vec<u8> = (0..size).map(|i| (i + round) as u8).collect();
                    client.send(&message).unwrap();
                }
            }
        }
    });
    for round in 0..20_usize {
        for size in sizes {
            let message = server.recv_timeout(TIME_LIMIT).unwrap();
            assert_eq!(message.len(), size);
            assert!(
                message
                    .iter()
                    .enumerate()
                    .all(|(i, byte)| *byte == (i + round) as u8),
                "{size} bytes, round {round}"
            );
        }
    }
    sender.join().unwrap();
    client.close().unwrap();
    assert_eq!(
        reason(server.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
    assert_eq!(
        reason(server.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed,
        "later calls must return the same reason"
    );
    assert_eq!(reason(server.send(b"late")), CloseReason::PeerClosed);
    assert_eq!(reason(client.send(b"late")), CloseReason::LocallyClosed);
}

#[test]
fn both_directions_at_once_in_every_polling_mode() {
    let _test = DeviceTest::start();
    for polling in [Polling::Event, Polling::default(), Polling::Busy] {
        let mut config = Config::default();
        config.polling = polling;
        let (client, server) = pair_with(&config);
        let run = |endpoint: &Endpoint| {
            let sender = thread::spawn({
                let endpoint = endpoint.clone();
                move || (0..2000_u32).for_each(|i| endpoint.send(&i.to_le_bytes()).unwrap())
            });
            let endpoint = endpoint.clone();
            let receiver = thread::spawn(move || {
                for i in 0..2000_u32 {
                    assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), i.to_le_bytes());
                }
            });
            [sender, receiver]
        };
        for thread in [run(&client), run(&server)].into_iter().flatten() {
            thread.join().unwrap();
        }
        client.close().unwrap();
    }
}

#[test]
fn kept_messages_stall_sender_until_released() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.receive_window = Some(8);
    let (client, server) = pair_with(&config);
    for _ in 0..3 {
        let mut sent = 0;
        while client
            .send_timeout(b"x", Duration::from_millis(300))
            .is_ok()
        {
            sent += 1;
        }
        // The receiver sends a separate grant only when half of the window is free. Therefore up to
        // three slots can be free but not yet granted.
        assert!(
            (5..=8).contains(&sent),
            "a window of 8 must accept 5 to 8 messages, not {sent}"
        );
        assert!(matches!(client.try_send(b"x"), Err(TrySendError::Full)));
        let held: Vec<_> = (0..sent)
            .map(|_| server.recv_timeout(TIME_LIMIT).unwrap())
            .collect();
        assert!(matches!(
            server.recv_timeout(Duration::from_millis(50)),
            Err(Error::TimedOut)
        ));
        assert!(
            matches!(client.try_send(b"x"), Err(TrySendError::Full)),
            "held messages must keep the window full"
        );
        drop(held);
        client.send_timeout(b"y", TIME_LIMIT).unwrap();
        assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"y");
    }
    client.close().unwrap();
}

#[test]
fn receiver_may_keep_all_but_one_window_place() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.receive_window = Some(8);
    config.keepalive_interval = None;
    let (client, server) = pair_with(&config);
    let sender = thread::spawn({
        let client = client.clone();
        move || (0..200_u32).for_each(|i| client.send(&i.to_le_bytes()).unwrap())
    });
    let mut held = Vec::new();
    for i in 0..200_u32 {
        let message = server.recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(*message, i.to_le_bytes());
        if held.len() < 7 {
            held.push(message);
        }
    }
    sender.join().unwrap();
    drop(held);
    client.close().unwrap();
}

#[test]
fn both_sides_stall_and_resume_when_neither_reads() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let mut counts = [0_u32; 2];
    for (endpoint, count) in [&client, &server].into_iter().zip(&mut counts) {
        while endpoint
            .send_timeout(&count.to_le_bytes(), Duration::from_secs(2))
            .is_ok()
        {
            *count += 1;
        }
    }
    let window = client.info().negotiated.unwrap().send_window.into();
    assert_eq!(counts, [window, window]);
    for (endpoint, other) in [(&client, &server), (&server, &client)] {
        for i in 0..window {
            assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), i.to_le_bytes());
        }
        other.send_timeout(b"on", TIME_LIMIT).unwrap();
        assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"on");
    }
    client.close().unwrap();
}

#[test]
fn the_smallest_window_and_ring_work() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.receive_window = Some(1);
    config.send_depth = Some(1);
    config.rdma.max_inline = 0;
    let (client, server) = pair_with(&config);
    let sender = thread::spawn({
        let client = client.clone();
        move || (0..500_u32).for_each(|i| client.send(&i.to_le_bytes()).unwrap())
    });
    for i in 0..500_u32 {
        assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), i.to_le_bytes());
    }
    sender.join().unwrap();
    server.close().unwrap();
    assert_eq!(
        reason(client.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
}

#[test]
fn ipv6_works_as_well() {
    let lab = DeviceTest::start();
    let listener = Listener::builder().config(&patient());
    let listener = listener.bind((lab.addr6, 0)).unwrap();
    let address = listener.local_addr();
    assert!(address.is_ipv6());
    let client = thread::spawn(move || connect(address).unwrap());
    let server = listener.accept_timeout(TIME_LIMIT).unwrap();
    let client = client.join().unwrap();
    assert_eq!(client.peer_addr(), address);
    assert_eq!(server.info().local_addr, address);
    assert_eq!(client.info().local_addr, server.peer_addr());
    client.send(b"six").unwrap();
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"six");
    client.close().unwrap();
}

#[test]
fn messages_outlive_their_connection() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    client.send(b"kept").unwrap();
    let message = server.recv_timeout(TIME_LIMIT).unwrap();
    client.close().unwrap();
    assert_eq!(
        reason(server.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
    drop((client, server));
    assert_eq!(*message, *b"kept");
    assert_eq!(message.into_vec(), b"kept");
}

#[test]
fn messages_sent_before_a_close_arrive() {
    let _test = DeviceTest::start();
    for _ in 0..20 {
        let (client, server) = pair();
        let window = client.info().negotiated.unwrap().send_window;
        for i in 0..window {
            client.send(&i.to_le_bytes()).unwrap();
        }
        // The close succeeds because the server's device has received the messages, although the
        // server's program has not yet received any of them.
        client.close().unwrap();
        for i in 0..window {
            assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), i.to_le_bytes());
        }
        assert_eq!(
            reason(server.recv_timeout(TIME_LIMIT)),
            CloseReason::PeerClosed
        );
    }
}

#[test]
fn both_sides_may_close_at_once() {
    let _test = DeviceTest::start();
    for _ in 0..20 {
        let (client, server) = pair();
        let other = thread::spawn(move || server.close());
        client.close().unwrap();
        other.join().unwrap().unwrap();
    }
}

#[test]
fn an_abort_reaches_the_peer_with_its_code() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    client.abort(77);
    assert_eq!(
        reason(server.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerAborted(77)
    );
    assert_eq!(
        reason(client.recv_timeout(TIME_LIMIT)),
        CloseReason::LocallyAborted
    );
}

#[test]
fn dropping_the_last_handle_closes() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let clone = client.clone();
    client.send(b"last").unwrap();
    drop(client);
    clone.send(b"words").unwrap();
    drop(clone);
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"last");
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"words");
    assert_eq!(
        reason(server.recv_timeout(TIME_LIMIT)),
        CloseReason::PeerClosed
    );
}

#[test]
fn completions_work_in_select_over_many_endpoints() {
    let _test = DeviceTest::start();
    let pairs: Vec<_> = (0..3).map(|_| pair()).collect();
    for round in 0..50_u8 {
        for (i, (client, _)) in pairs.iter().enumerate() {
            client.send(&[round, i as u8]).unwrap();
        }
        let mut seen = [false; 3];
        let late = crossbeam_channel::after(TIME_LIMIT);
        while seen.contains(&false) {
            let (i, completion) = select! {
                recv(pairs[0].1.completions()) -> completion => (0, completion),
                recv(pairs[1].1.completions()) -> completion => (1, completion),
                recv(pairs[2].1.completions()) -> completion => (2, completion),
                recv(late) -> _ => panic!("round {round}: {seen:?}"),
            };
            match completion.unwrap() {
                Completion::Received(message) => assert_eq!(*message, [round, i as u8]),
                other => panic!("{other:?}"),
            }
            assert!(!std::mem::replace(&mut seen[i], true));
        }
    }
    for (client, server) in &pairs {
        client.close().unwrap();
        let end = server.completions().recv_timeout(TIME_LIMIT).unwrap();
        assert!(
            matches!(end, Completion::Disconnected(CloseReason::PeerClosed)),
            "{end:?}"
        );
        assert!(
            server.completions().try_recv().is_err(),
            "no completion must follow the end of the connection"
        );
    }
}

#[test]
fn recv_and_select_may_be_mixed() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    for i in 0..30_u8 {
        client.send(&[i]).unwrap();
        assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), [i]);
        client.send(&[i, i]).unwrap();
        match server.completions().recv_timeout(TIME_LIMIT).unwrap() {
            Completion::Received(message) => assert_eq!(*message, [i, i]),
            other => panic!("{other:?}"),
        }
    }
    client.close().unwrap();
}

#[test]
fn many_threads_receive_on_one_endpoint() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let receivers: Vec<_> = (0..4)
        .map(|_| {
            let server = server.clone();
            thread::spawn(move || {
                let mut got = Vec::new();
                loop {
                    match server.recv() {
                        Ok(message) => got.push(u32::from_le_bytes((*message).try_into().unwrap())),
                        Err(Error::Disconnected(CloseReason::PeerClosed)) => return got,
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    for i in 0..3000_u32 {
        client.send(&i.to_le_bytes()).unwrap();
    }
    client.close().unwrap();
    let mut all: Vec<u32> = Vec::new();
    for receiver in receivers {
        let got = receiver.join().unwrap();
        assert!(got.is_sorted(), "each thread must receive in order");
        all.extend(got);
    }
    all.sort_unstable();
    assert_eq!(all, (0..3000).collect::<Vec<_>>());
}

#[test]
fn message_may_be_dropped_later_by_another_thread() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.receive_window = Some(16);
    let (client, server) = pair_with(&config);
    let (sender, keeper) = crossbeam_channel::unbounded::<rdmsg::Message>();
    let dropper = thread::spawn(move || {
        // Drop messages out of order, and always hold some.
        let mut held = VecDeque::new();
        for message in keeper {
            held.push_back(message);
            if held.len() == 8 {
                drop(held.remove(3));
                drop(held.pop_front());
            }
        }
    });
    let feeder = thread::spawn({
        let client = client.clone();
        move || (0..2000_u32).for_each(|i| client.send(&i.to_le_bytes()).unwrap())
    });
    for i in 0..2000_u32 {
        let message = server.recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(*message, i.to_le_bytes());
        sender.send(message).unwrap();
    }
    feeder.join().unwrap();
    client.close().unwrap();
    drop(sender);
    dropper.join().unwrap();
}

#[test]
fn keepalive_leaves_an_idle_connection_alone() {
    let _test = DeviceTest::start();
    let mut config = Config::default();
    config.keepalive_interval = Some(Duration::from_millis(100));
    let (client, server) = pair_with(&config);
    let quiet = server.recv_timeout(Duration::from_secs(2));
    assert!(matches!(quiet, Err(Error::TimedOut)), "{quiet:?}");
    client.send(b"still there").unwrap();
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"still there");
    client.close().unwrap();
}
