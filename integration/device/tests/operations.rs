//! Tests one-sided operations, which do not involve the peer's processor.

use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Engine, Error, Listener, Region,
    RemoteAccess, RemoteRegion, error::DeviceFault, status::WcStatus,
};
use toolbox::{DeviceTest, TIME_LIMIT, applies, pair, pair_with, patient, pattern, reason};

fn next(endpoint: &Endpoint) -> Completion {
    endpoint.next_completion_timeout(TIME_LIMIT).unwrap()
}

fn copy(region: &Region, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; range.len()];
    region.copy_out(range.start, &mut bytes);
    bytes
}

/// Sends the description of `remote` from one end to the other end. Returns the region that the
/// receiving end decodes.
fn send_remote(from: &Endpoint, to: &Endpoint, remote: &RemoteRegion) -> RemoteRegion {
    from.send(&remote.to_bytes()).unwrap();
    let message = to.recv_timeout(TIME_LIMIT).unwrap();
    RemoteRegion::from_bytes(message.as_ref().try_into().unwrap())
}

#[test]
fn bytes_are_read_and_written_where_asked() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let theirs = server
        .one_sided()
        .region(3 << 20, RemoteAccess::ALL)
        .unwrap();
    theirs.copy_in(0, &pattern(1, 3 << 20));
    let remote = send_remote(&server, &client, &theirs.remote());
    assert_eq!(remote, theirs.remote());
    let ours = client
        .one_sided()
        .region(3 << 20, RemoteAccess::NONE)
        .unwrap();

    client
        .one_sided()
        .read(&ours, 10..(2 << 20) + 10, &remote, 1000, 5)
        .unwrap();
    assert!(matches!(next(&client), Completion::Read(5)));
    let expected = &pattern(1, 3 << 20)[1000..(2 << 20) + 1000];
    assert!(copy(&ours, 10..(2 << 20) + 10) == expected);
    assert_eq!(copy(&ours, 0..10), [0; 10]);

    ours.copy_in(0, &pattern(2, 5000));
    client
        .one_sided()
        .write(&ours, 0..5000, &remote, 77, 6)
        .unwrap();
    assert!(matches!(next(&client), Completion::Written(6)));
    client.send(b"look").unwrap();
    assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"look");
    assert!(copy(&theirs, 77..5077) == pattern(2, 5000));
    assert_eq!(copy(&theirs, 0..77), pattern(1, 3 << 20)[..77]);

    // A write of zero bytes also produces a completion.
    client
        .one_sided()
        .write(&ours, 7..7, &remote, 3 << 20, 8)
        .unwrap();
    assert!(matches!(next(&client), Completion::Written(8)));
    client.close().unwrap();
}

#[test]
fn immediate_arrives_in_order_and_uses_credit() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    if !applies(
        client.info().capabilities.unwrap().write_with_imm,
        "writes with immediate data",
    ) {
        return;
    }
    let theirs = server
        .one_sided()
        .region(4096, RemoteAccess::WRITE)
        .unwrap();
    let ours = client.one_sided().region(4096, RemoteAccess::NONE).unwrap();
    ours.copy_in(0, &pattern(3, 4096));
    client.send(b"before").unwrap();
    client
        .one_sided()
        .write_with_imm(&ours, 0..4096, &theirs.remote(), 0, 0xfeed_0001, 1)
        .unwrap();
    client.send(b"after").unwrap();
    assert!(matches!(next(&server), Completion::Received(message) if *message == *b"before"));
    let Completion::Immediate(immediate) = next(&server) else {
        panic!("the immediate is out of order")
    };
    assert_eq!((immediate.imm_data(), immediate.len()), (0xfeed_0001, 4096));
    assert!(copy(&theirs, 0..4096) == pattern(3, 4096));
    drop(immediate);
    assert!(matches!(next(&server), Completion::Received(message) if *message == *b"after"));
    assert!(matches!(next(&client), Completion::Written(1)));

    // The thread issues more writes than the window has slots. Each write with immediate data needs
    // one slot. When the window is full, the next write waits until the server has released the
    // immediate data of earlier writes.
    let waiting = std::thread::spawn({
        let client = client.clone();
        let (ours, remote) = (ours.clone(), theirs.remote());
        move || {
            for word in 0..200 {
                while let Err(error) =
                    client
                        .one_sided()
                        .write_with_imm(&ours, 0..8, &remote, 0, word, 2)
                {
                    assert!(matches!(error, Error::CompletionsNotTaken), "{error}");
                    assert!(matches!(next(&client), Completion::Written(2)));
                }
            }
        }
    });
    let window = usize::from(server.info().negotiated.unwrap().recv_window);
    let mut held = Vec::new();
    for word in 0..200 {
        let Completion::Immediate(immediate) = next(&server) else {
            panic!("the immediate is out of order")
        };
        assert_eq!(immediate.imm_data(), word);
        held.push(immediate);
        // Hold fewer immediate values than the window has slots, so that the peer always has
        // credit.
        if held.len() == window - 1 {
            held.clear();
        }
    }
    waiting.join().unwrap();
    drop(held);
    client.close().unwrap();
}

#[test]
fn atomics_add_and_swap() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    if !applies(
        client.info().capabilities.unwrap().atomic,
        "atomic operations",
    ) {
        return;
    }
    let theirs = server.one_sided().region(64, RemoteAccess::ALL).unwrap();
    theirs.copy_in(8, &40_u64.to_ne_bytes());
    let ours = client.one_sided().region(64, RemoteAccess::NONE).unwrap();
    let remote = theirs.remote();
    client
        .one_sided()
        .fetch_add(&ours, 0, &remote, 8, 2, 1)
        .unwrap();
    assert!(matches!(
        next(&client),
        Completion::Fetched { id: 1, value: 40 }
    ));
    client
        .one_sided()
        .compare_swap(&ours, 16, &remote, 8, 41, 0, 2)
        .unwrap();
    assert!(matches!(
        next(&client),
        Completion::Fetched { id: 2, value: 42 }
    ));
    client
        .one_sided()
        .compare_swap(&ours, 16, &remote, 8, 42, 7, 3)
        .unwrap();
    assert!(matches!(
        next(&client),
        Completion::Fetched { id: 3, value: 42 }
    ));
    assert_eq!(copy(&theirs, 8..16), 7_u64.to_ne_bytes());
    assert_eq!(copy(&ours, 16..24), 42_u64.to_ne_bytes());
    let error = client
        .one_sided()
        .fetch_add(&ours, 0, &remote, 12, 2, 1)
        .unwrap_err();
    assert!(matches!(error, Error::Misaligned { offset: 12 }), "{error}");

    // The server adds to a counter in the client's memory. No addition may be lost.
    let own = server.one_sided().region(64, RemoteAccess::NONE).unwrap();
    let number = client
        .one_sided()
        .region(8, RemoteAccess::ALL)
        .unwrap()
        .clone();
    let remote = number.remote();
    let adder = std::thread::spawn({
        let (server, own) = (server.clone(), own);
        move || {
            for _ in 0..200 {
                server
                    .one_sided()
                    .fetch_add(&own, 0, &remote, 0, 1, 0)
                    .unwrap();
                assert!(matches!(next(&server), Completion::Fetched { .. }));
            }
        }
    });
    adder.join().unwrap();
    assert_eq!(copy(&number, 0..8), 200_u64.to_ne_bytes());
    client.close().unwrap();
}

/// Issues all operations before it reads the first completion. Each completion must contain the
/// value of its own operation, although all operations use the same destination.
#[test]
fn concurrent_atomics_return_distinct_values() {
    const COUNT: u64 = 60;
    let _test = DeviceTest::start();
    for shared_receive in [None, Some(1 << 17)] {
        let mut config = Config::default();
        // With `Polling::Event`, only the engine's thread polls. When the thread wakes for the
        // first completion, further completions can have arrived already.
        config.polling = rdmsg::Polling::Event;
        config.shared_receive = shared_receive;
        config.receive_window = Some(16);
        config.send_depth = Some(64);
        config.eager_size = Some(64);
        let (client, server) = pair_with(&config);
        if !applies(
            client.info().capabilities.unwrap().atomic,
            "atomic operations",
        ) {
            return;
        }
        let theirs = server.one_sided().region(8, RemoteAccess::ALL).unwrap();
        let remote = theirs.remote();
        let ours = client.one_sided().region(24, RemoteAccess::NONE).unwrap();
        ours.copy_in(0, &[7; 24]);
        for id in 0..COUNT {
            if id % 2 == 0 {
                client
                    .one_sided()
                    .fetch_add(&ours, 8, &remote, 0, 1, id)
                    .unwrap();
            } else {
                client
                    .one_sided()
                    .compare_swap(&ours, 8, &remote, 0, id, id + 1, id)
                    .unwrap();
            }
            // The application may overwrite the destination at any time. Do not overwrite the value
            // of the final operation, because an assertion below reads this value.
            if id + 1 < COUNT {
                ours.copy_in(8, &u64::MAX.to_ne_bytes());
            }
        }
        for id in 0..COUNT {
            let done = next(&client);
            assert!(
                matches!(done, Completion::Fetched { id: of, value } if of == id && value == id),
                "{id}: {done:?}"
            );
        }
        assert_eq!(copy(&theirs, 0..8), COUNT.to_ne_bytes());
        assert_eq!(copy(&ours, 8..16), (COUNT - 1).to_ne_bytes());
        assert_eq!(copy(&ours, 0..8), [7; 8]);
        assert_eq!(copy(&ours, 16..24), [7; 8]);
        client.close().unwrap();
    }
}

#[test]
fn invalid_arguments_are_named_without_effect() {
    let lab = DeviceTest::start();
    let (client, server) = pair();
    let theirs = server.one_sided().region(100, RemoteAccess::READ).unwrap();
    let remote = theirs.remote();
    let ours = client.one_sided().region(100, RemoteAccess::NONE).unwrap();
    let out = |result: Result<(), Error>, what: &str| {
        let error = result.unwrap_err().to_string();
        assert_eq!(error, what);
    };
    out(
        client.one_sided().read(&ours, 50..101, &remote, 0, 0),
        "51 bytes at offset 50 do not fit into the region of 100 bytes",
    );
    out(
        client.one_sided().read(&ours, 0..50, &remote, 51, 0),
        "50 bytes at offset 51 do not fit into the peer's region of 100 bytes",
    );
    out(
        client.one_sided().read(&ours, 0..50, &remote, u64::MAX, 0),
        "50 bytes at offset 18446744073709551615 do not fit into the peer's region of 100 bytes",
    );
    out(
        client.one_sided().write(&ours, 0..50, &remote, 0, 0),
        "the peer's region does not allow the operation: it allows read, but the operation needs \
         write",
    );
    // A region of another engine belongs to a different protection domain, so it cannot be used
    // here.
    let engine = Engine::new().unwrap();
    let listener = Listener::builder().config(&patient());
    let listener = listener.bind(lab.at(0)).unwrap();
    let connector = Connector::new().config(&patient()).engine(&engine);
    let address = listener.local_addr();
    let connecting = std::thread::spawn(move || connector.connect(address).unwrap());
    let _accepted = listener.accept_timeout(TIME_LIMIT).unwrap();
    let other = connecting.join().unwrap();
    let foreign = other.one_sided().region(100, RemoteAccess::NONE).unwrap();
    let error = client
        .one_sided()
        .read(&foreign, 0..10, &remote, 0, 0)
        .unwrap_err();
    assert!(matches!(error, Error::ForeignMemory), "{error}");
    assert!(
        client.try_next_completion().unwrap().is_none(),
        "a refused operation must not complete"
    );
    client
        .one_sided()
        .read(&ours, 0..100, &remote, 0, 1)
        .unwrap();
    assert!(matches!(next(&client), Completion::Read(1)));
    client.close().unwrap();
    drop(other);
    engine.shutdown();
}

#[test]
fn remote_access_error_fails_operation_and_connection() {
    let lab = DeviceTest::start();
    let (client, server) = pair();
    let (bystander, other_bystander) = pair();
    let theirs = server.one_sided().region(4096, RemoteAccess::ALL).unwrap();
    let remote = theirs.remote();
    let ours = client.one_sided().region(4096, RemoteAccess::NONE).unwrap();
    client
        .one_sided()
        .write(&ours, 0..8, &remote, 0, 1)
        .unwrap();
    assert!(matches!(next(&client), Completion::Written(1)));
    drop(theirs);
    client
        .one_sided()
        .read(&ours, 0..4096, &remote, 0, 2)
        .unwrap();
    // This call fails if the previous READ has failed and has already ended the connection.
    let next = client.one_sided().read(&ours, 0..4096, &remote, 0, 3);
    assert!(
        matches!(next, Ok(()) | Err(Error::Disconnected(_))),
        "{next:?}"
    );
    let completions: Vec<Completion> =
        std::iter::from_fn(|| client.next_completion_timeout(TIME_LIMIT).ok()).collect();
    match &completions[..] {
        [
            Completion::Failed {
                id: 2,
                reason: first,
            },
            others @ ..,
            Completion::Disconnected(end),
        ] => {
            assert_eq!(others.len(), usize::from(next.is_ok()), "{others:?}");
            for other in others {
                assert!(
                    matches!(other, Completion::Failed { id: 3, .. }),
                    "{other:?}"
                );
            }
            // On iWARP the reason is the peer's disconnect, which has no status.
            let expected = match first {
                CloseReason::WorkRequest { status, .. } => *status == WcStatus::REM_ACCESS_ERR,
                CloseReason::PeerDisconnected => lab.is_iwarp(),
                _ => false,
            };
            assert!(expected, "{first:?}");
            assert_eq!(first, end);
        }
        completions => panic!("{completions:?}"),
    }
    let noticed = reason(server.recv_timeout(TIME_LIMIT));
    assert!(
        matches!(
            noticed,
            CloseReason::PeerDisconnected
                | CloseReason::WorkRequest { .. }
                // On software iWARP, the device that rejects the request reports an error to its
                // own program, too.
                | CloseReason::DeviceFault(DeviceFault::Request | DeviceFault::Access)
        ),
        "{noticed:?}"
    );
    bystander.send(b"still here").unwrap();
    assert_eq!(
        *other_bystander.recv_timeout(TIME_LIMIT).unwrap(),
        *b"still here"
    );
    bystander.close().unwrap();
}

#[test]
fn a_region_may_go_while_it_is_used() {
    let _test = DeviceTest::start();
    let (client, server) = pair();
    let theirs = server
        .one_sided()
        .region(2 << 20, RemoteAccess::ALL)
        .unwrap();
    theirs.copy_in(0, &pattern(4, 2 << 20));
    for id in 0..20 {
        let ours = client
            .one_sided()
            .region(2 << 20, RemoteAccess::NONE)
            .unwrap();
        client
            .one_sided()
            .read(&ours, 0..2 << 20, &theirs.remote(), 0, id)
            .unwrap();
        drop(ours);
        assert!(matches!(next(&client), Completion::Read(done) if done == id));
    }
    client.close().unwrap();
}
