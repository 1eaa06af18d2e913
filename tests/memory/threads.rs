use std::{
    io::{Read, Write},
    sync::Arc,
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Engine, Error, Listener, Stream, Transport,
    TransportChoice, testing::Faults,
};

#[test]
fn pair_exchanges_messages_without_waiting() {
    let (near, far) = Endpoint::pair().unwrap();
    assert_eq!(near.info().transport, Transport::Memory);
    for round in 0..1000_u32 {
        near.send(&round.to_be_bytes()).unwrap();
        // The message is available immediately: no other thread has to deliver it.
        assert_eq!(far.try_recv().unwrap().unwrap(), round.to_be_bytes());
        far.send(b"back").unwrap();
        assert_eq!(near.try_recv().unwrap().unwrap(), b"back");
    }
    near.close().unwrap();
    let error = far.try_recv().unwrap_err();
    assert!(matches!(
        error,
        Error::Disconnected(CloseReason::PeerClosed)
    ));
}

#[test]
fn pair_ignores_settings_of_other_transports() {
    let engine = Engine::in_memory().unwrap();
    let config = Config::default().with(|config| {
        config.transport = TransportChoice::Rdma;
        config.resume = Duration::from_secs(60);
    });
    for len in [0, 20, Connector::PRIVATE_DATA_MAX] {
        let data = vec![7; len];
        let connector = Connector::new()
            .config(&config)
            .retry_refused(true)
            .private_data(&data)
            .label("first")
            .engine(&engine)
            .source(([203, 0, 113, 1], 0))
            .alternatives("203.0.113.2:7471")
            .unwrap();
        let (near, far) = connector.pair().unwrap();
        assert_eq!(near.info().label.as_deref(), Some("first"));
        assert_eq!(far.info().label, None);
        assert_eq!(far.info().peer_data, data);
        assert!(near.info().peer_data.is_empty());
        assert_eq!(near.info().transport, Transport::Memory);
        assert_eq!(near.info().local_addr, far.peer_addr());
        assert_eq!(engine.statistics().unwrap().connections, 0);
        Faults::of(&near).unwrap().cut();
        assert_eq!(near.statistics().resumes, 1);
        far.send(b"after the cut").unwrap();
        assert_eq!(near.recv().unwrap(), b"after the cut");
        near.close().unwrap();

        let (mut near, mut far) = connector.pair_stream().unwrap();
        assert_eq!(far.transport(), Transport::Memory);
        near.write_all(b"bytes").unwrap();
        drop(near);
        let mut text = String::new();
        far.read_to_string(&mut text).unwrap();
        assert_eq!(text, "bytes");
    }
    let long = vec![7; Connector::PRIVATE_DATA_MAX + 1];
    let error = Connector::new().private_data(&long).pair().unwrap_err();
    assert!(matches!(error, Error::PrivateDataTooLong { .. }), "{error}");
    let error = Connector::new()
        .label(&"long".repeat(20))
        .pair()
        .unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
}

#[test]
fn large_message_arrives_before_send_returns() {
    let (near, far) = Endpoint::pair().unwrap();
    for len in [0, 1, 64 << 10, 100_000, 5 << 20] {
        let message = pattern::sequence(0, len);
        near.send(&message).unwrap();
        let received = far.try_recv().unwrap().unwrap();
        assert!(received == message, "{len}");
    }
    near.flush().unwrap();
    far.close().unwrap();
}

#[test]
fn dropped_messages_make_room_at_once() {
    let config = Config::default().with(|config| config.receive_window = Some(4));
    let (near, far) = Connector::new().config(&config).pair().unwrap();
    for _ in 0..100 {
        for _ in 0..4 {
            near.try_send(b"fits").unwrap();
        }
        assert!(near.try_send(b"more").unwrap_err().is_full());
        let held: Vec<_> = (0..4).map(|_| far.recv().unwrap()).collect();
        assert!(near.try_send(b"more").unwrap_err().is_full());
        drop(held);
    }
}

#[test]
fn waiting_thread_is_woken_by_a_send() {
    let (near, far) = Endpoint::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok(message) = far.recv() {
                far.send(&message).unwrap();
            }
        });
        for round in 0..200_u32 {
            near.send(&round.to_be_bytes()).unwrap();
            assert_eq!(near.recv().unwrap(), round.to_be_bytes());
        }
        near.close().unwrap();
    });
}

#[test]
fn sides_send_and_receive_in_four_threads() {
    const COUNT: u32 = 20_000;
    let config = Config::default().with(|config| config.receive_window = Some(8));
    let (near, far) = Connector::new().config(&config).pair().unwrap();
    let send = |side: &Endpoint| {
        for number in 0..COUNT {
            side.send(&number.to_be_bytes()).unwrap();
        }
    };
    let receive = |side: &Endpoint| {
        for number in 0..COUNT {
            assert_eq!(side.recv().unwrap(), number.to_be_bytes());
        }
    };
    thread::scope(|scope| {
        for side in [&near, &far] {
            scope.spawn(|| send(side));
            scope.spawn(|| receive(side));
        }
    });
    near.close().unwrap();
}

/// A waker whose `wake` call forwards a message to another connection.
struct Relay {
    from: Endpoint,
    to: Endpoint,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        if let Some(message) = self.from.try_recv().unwrap() {
            self.to.send(&message).unwrap();
        }
    }
}

#[test]
fn waker_may_send_over_another_connection() {
    let (client, from) = Endpoint::pair().unwrap();
    let (to, server) = Endpoint::pair().unwrap();
    let relay = Arc::new(Relay { from, to });
    let waker = Waker::from(Arc::clone(&relay));
    for round in 0..100_u8 {
        let polled = relay.from.poll_recv(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        client.send(&[round]).unwrap();
        assert_eq!(server.try_recv().unwrap().unwrap(), [round]);
    }
}

#[test]
fn stream_pair_carries_bytes_both_ways() {
    let (mut near, mut far) = Stream::pair().unwrap();
    let bytes = pattern::sequence(0, 3 << 20);
    thread::scope(|scope| {
        scope.spawn(|| {
            near.write_all(&bytes).unwrap();
            near.shutdown(std::net::Shutdown::Write).unwrap();
            let mut back = Vec::new();
            near.read_to_end(&mut back).unwrap();
            assert_eq!(back, b"done");
        });
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        assert!(got == bytes);
        far.write_all(b"done").unwrap();
        drop(far);
    });
}

#[test]
fn name_serves_one_listener_at_a_time() {
    let error = Endpoint::connect("memory://one at a time").unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("cannot connect to memory://one at a time: "),
        "{text}"
    );
    let listener = Listener::bind("memory://one at a time").unwrap();
    let text = Listener::bind("memory://one at a time")
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        "cannot listen on memory://one at a time: another listener of this process uses this \
         name; close it, or use another name"
    );
    let near = Endpoint::connect("memory://one at a time").unwrap();
    let far = listener.try_accept().unwrap().unwrap();
    near.send(b"named").unwrap();
    assert_eq!(far.recv().unwrap(), b"named");
    listener.close();
    assert!(Endpoint::connect("memory://one at a time").is_err());
    let again = Listener::bind("memory://one at a time").unwrap();
    let other = Endpoint::connect("memory://one at a time").unwrap();
    assert_ne!(again.accept().unwrap(), far);
    near.close().unwrap();
    other.close().unwrap();
}

#[test]
fn engine_without_thread_serves_no_other_transport() {
    let engine = Engine::in_memory().unwrap();
    let builder = Listener::builder().engine(&engine);
    let text = builder.bind("tcp://127.0.0.1:0").unwrap_err().to_string();
    let connector = Connector::new().engine(&engine);
    let other = connector.connect("tcp://127.0.0.1:1").unwrap_err();
    assert_eq!(text, other.to_string());
    assert_eq!(
        text,
        "invalid configuration: engine is Engine::in_memory(), allowed is Engine::new() for \
         transports other than memory"
    );
}

#[test]
fn address_of_a_name_connects_to_its_listener() {
    let listener = Listener::bind("memory://by address").unwrap();
    let near = Endpoint::connect(listener.local_addr()).unwrap();
    let text = listener.local_addr().to_string();
    let also_near = Endpoint::connect(&*text).unwrap();
    for near in [near, also_near] {
        assert_eq!(near.info().transport, Transport::Memory);
        near.send(b"here").unwrap();
        assert_eq!(listener.accept().unwrap().recv().unwrap(), b"here");
    }
}

#[test]
fn engine_without_thread_shuts_down() {
    let engine = Engine::in_memory().unwrap();
    let builder = Listener::builder().engine(&engine);
    let listener = builder.bind("memory://shut down").unwrap();
    let near = Endpoint::connect("memory://shut down").unwrap();
    let far = listener.accept().unwrap();
    near.send(b"last").unwrap();
    engine.shutdown();
    assert!(near.info().close_reason.is_some());
    assert_eq!(far.recv().unwrap(), b"last");
    assert!(far.recv().is_err());
    assert!(matches!(listener.accept(), Err(Error::EngineShutDown)));
    assert!(near.send(b"late").is_err());
}
