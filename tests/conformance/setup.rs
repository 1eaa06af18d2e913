use std::{net::SocketAddr, thread, time::Duration};

use rdmsg::{
    CloseReason, Config, Connector, Endpoint, Error, Listener, Transport, TransportChoice,
};

use crate::stage::{Stage, TIME_LIMIT, ip_and_transport, small};

fn connect_later(
    connector: Connector,
    addr: SocketAddr,
) -> thread::JoinHandle<Result<Endpoint, Error>> {
    thread::spawn(move || connector.connect(addr))
}

#[test]
fn private_data_travels_both_ways() {
    let stage = Stage::new(&Config::default());
    let connector = stage.connector.clone().private_data(b"user 7");
    let listener = stage.requests(&Config::default());
    let connecting = connect_later(connector, listener.local_addr());
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    assert_eq!(request.private_data(), b"user 7");
    assert_eq!(request.peer_addr().ip(), ip_and_transport().0);
    assert_eq!(request.local_addr().ip(), ip_and_transport().0);
    let accepted = request.accept_with(b"welcome").unwrap();
    let connected = connecting.join().unwrap().unwrap();
    assert_eq!(connected.info().peer_data, b"welcome");
    assert_eq!(accepted.info().peer_data, b"user 7");
    assert_eq!(connected.peer_addr(), listener.local_addr());
    assert_eq!(connected.info().local_addr.ip(), ip_and_transport().0);
    let too_much = Connector::new()
        .private_data(&[0; Connector::PRIVATE_DATA_MAX + 1])
        .connect(connected.peer_addr());
    assert!(matches!(too_much, Err(Error::PrivateDataTooLong { .. })));
}

#[test]
fn a_rejection_carries_its_reason() {
    let stage = Stage::new(&Config::default());
    let listener = stage.requests(&Config::default());
    let connecting = connect_later(stage.connector.clone(), listener.local_addr());
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    request.reject(b"not today").unwrap();
    match connecting.join().unwrap() {
        Err(Error::Connect {
            reason: CloseReason::Rejected { data, .. },
            ..
        }) => assert_eq!(*data, *b"not today"),
        other => panic!("{other:?}"),
    }
}

/// Private data longer than 20 bytes is sent in a separate frame. The listener passes the request
/// to the program only after this frame has arrived.
#[test]
fn long_private_data_arrive_with_the_request() {
    let stage = Stage::new(&Config::default());
    let listener = stage.requests(&Config::default());
    for len in [21, 1000, 4096] {
        let token: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let connector = stage.connector.clone().private_data(&token);
        let connecting = connect_later(connector, listener.local_addr());
        let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        assert!(request.private_data() == token, "{len}");
        assert!(
            !connecting.is_finished(),
            "the connect must wait for the answer"
        );
        let accepted = request.accept_with(&[3; 160]).unwrap();
        let connected = connecting.join().unwrap().unwrap();
        assert_eq!(connected.info().peer_data, [3; 160]);
        assert!(accepted.info().peer_data == token, "{len}");
        connected.send(b"ping").unwrap();
        assert_eq!(*accepted.recv_timeout(TIME_LIMIT).unwrap(), *b"ping");
        accepted.send(b"pong").unwrap();
        assert_eq!(*connected.recv_timeout(TIME_LIMIT).unwrap(), *b"pong");
        connected.close().unwrap();
    }
}

#[test]
fn rejection_of_long_private_data_carries_reason() {
    let stage = Stage::new(&Config::default());
    let listener = stage.requests(&Config::default());
    let connector = stage.connector.clone().private_data(&[7; 4096]);
    for (reason, rejects) in [(&b"unknown token"[..], true), (b"", false)] {
        let connecting = connect_later(connector.clone(), listener.local_addr());
        let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        if rejects {
            request.reject(reason).unwrap();
        } else {
            drop(request);
        }
        match connecting.join().unwrap() {
            Err(Error::Connect {
                reason: CloseReason::Rejected { data, .. },
                ..
            }) => assert_eq!(*data, *reason),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn listener_accepts_long_private_data() {
    let mut resuming = Config::default();
    resuming.resume = Duration::from_secs(5);
    for config in [Config::default(), resuming] {
        let mut stage = Stage::new(&config);
        stage.connector = stage.connector.private_data(&[7; 4096]);
        let (connected, accepted) = stage.pair();
        assert!(accepted.info().peer_data == [7; 4096]);
        assert_eq!(
            connected.info().peer_data,
            b"",
            "the peer's data must not contain the session's identity"
        );
        connected.close().unwrap();
    }
}

#[test]
fn dropped_listener_rejects_long_request_as_busy() {
    let stage = Stage::new(&Config::default());
    let listener = stage.requests(&Config::default());
    let connector = stage.connector.clone().private_data(&[7; 100]);
    let connecting = connect_later(connector, listener.local_addr());
    let taken = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    listener.close();
    drop(listener);
    let accepted = taken.accept().unwrap();
    drop((connecting.join().unwrap().unwrap(), accepted));

    let listener = stage.requests(&Config::default());
    let connector = stage.connector.clone().private_data(&[7; 100]);
    let connecting = connect_later(connector, listener.local_addr());
    while listener.requests().is_empty() {
        thread::yield_now();
    }
    drop(listener);
    match connecting.join().unwrap() {
        Err(Error::Connect { reason, .. }) => assert_eq!(reason, CloseReason::PeerBusy),
        other => panic!("{other:?}"),
    }
}

/// The first listener receives a request with long private data, and is dropped before the program
/// answers. The connector repeats the request until the program accepts the request at the second
/// listener.
#[test]
fn long_request_is_repeated_after_listener_closes() {
    let stage = Stage::new(&Config::default());
    let first = stage.requests(&Config::default());
    let address = first.local_addr();
    let builder = Listener::builder().engine(&stage.engine);
    let builder = builder.bind_within(TIME_LIMIT);
    let connector = stage.connector.clone().private_data(&[7; 1000]);
    let connector = connector.retry_refused(true);

    let connecting = connect_later(connector.clone(), address);
    while first.requests().is_empty() {
        thread::yield_now();
    }
    drop(first);
    let second = builder.bind_requests(address).unwrap();
    let request = second.requests().recv_timeout(TIME_LIMIT).unwrap();
    assert!(request.private_data() == [7; 1000]);
    let accepted = request.accept_with(b"welcome").unwrap();
    let connected = connecting.join().unwrap().unwrap();
    assert_eq!(connected.info().peer_data, b"welcome");
    connected.send(b"ping").unwrap();
    assert_eq!(*accepted.recv_timeout(TIME_LIMIT).unwrap(), *b"ping");

    // If the program itself rejects a request, the connector does not repeat the request.
    let connecting = connect_later(connector, address);
    let request = second.requests().recv_timeout(TIME_LIMIT).unwrap();
    request.reject(b"revoked").unwrap();
    match connecting.join().unwrap() {
        Err(Error::Connect {
            reason: CloseReason::Rejected { data, .. },
            ..
        }) => assert_eq!(*data, *b"revoked"),
        other => panic!("{other:?}"),
    }
    assert!(second.try_request().is_none());
}

/// The connector would repeat the refused request for 10 minutes. Dropping the future cancels the
/// request, so the drain returns.
#[test]
fn dropped_connect_repeats_no_long_request() {
    let stage = Stage::new(&Config::default());
    let patient = Config::default().with(|config| {
        config.connect_timeout = Duration::from_secs(600);
        // Select one transport. With several transports, the connector would try the next one only
        // when the future is polled, and this test does not poll.
        config.transport = match ip_and_transport().1 {
            Transport::Rdma => TransportChoice::Rdma,
            Transport::Memory => TransportChoice::Memory,
            _ => TransportChoice::Tcp,
        };
    });
    let listener = stage.requests(&Config::default());
    let connector = stage.connector.clone().config(&patient).retry_refused(true);
    let connector = connector.private_data(&[7; 100]);
    let connecting = connector.start(listener.local_addr()).unwrap();
    while listener.requests().is_empty() {
        thread::yield_now();
    }
    drop(listener);
    // Wait until the engine no longer counts the listener's side of the connection. The connecting
    // side still counts, and waits for its next attempt.
    while stage.engine.statistics().unwrap().connections > 1 {
        thread::yield_now();
    }
    drop(connecting);
    assert_eq!(stage.engine.drain(TIME_LIMIT).unwrap(), 0);
}

#[test]
fn private_data_above_peers_eager_size_are_named() {
    let stage = Stage::new(&Config::default());
    for (len, eager_size, least) in [(1000, 512, 1000), (1000, 159, 1000), (100, 128, 160)] {
        let connector = stage.connector.clone().private_data(&vec![7; len]);
        let small = Config::default().with(|config| config.eager_size = Some(eager_size));
        let listener = stage.requests(&small);
        let error = connector.connect(listener.local_addr()).unwrap_err();
        let expected = format!(
            "cannot connect to {}: the two sides are incompatible: the private data have {len} \
             bytes, which eager_size allows here, but eager_size at the peer is {eager_size}; send \
             at most 20 bytes, or raise it there to at least {least}",
            listener.local_addr()
        );
        assert_eq!(error.to_string(), expected);
    }
}

/// The program leaves the first request unanswered. After the listener's time limit, the connector
/// repeats the request.
#[test]
fn unanswered_long_request_is_repeated() {
    let stage = Stage::new(&Config::default());
    let brief = Config::default().with(|c| c.connect_timeout = Duration::from_millis(300));
    let listener = stage.requests(&brief);
    let connector = stage.connector.clone().private_data(&[7; 100]);
    let connector = connector.retry_refused(true);
    let connecting = connect_later(connector, listener.local_addr());
    let unanswered = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    // On a busy machine, the time limit can expire again before the program accepts the request.
    let accepted = loop {
        let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        if let Ok(accepted) = request.accept() {
            break accepted;
        }
    };
    let connected = connecting.join().unwrap().unwrap();
    unanswered.accept().unwrap_err();
    connected.send(b"ping").unwrap();
    assert_eq!(*accepted.recv_timeout(TIME_LIMIT).unwrap(), *b"ping");
}

#[test]
fn unanswered_long_request_ends_as_busy() {
    let mut config = Config::default();
    config.connect_timeout = Duration::from_millis(300);
    let stage = Stage::new(&Config::default());
    let listener = stage.requests(&config);
    let connector = stage.connector.clone().private_data(&[7; 100]);
    let connecting = connect_later(connector, listener.local_addr());
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    match connecting.join().unwrap() {
        Err(Error::Connect { reason, .. }) => assert_eq!(reason, CloseReason::PeerBusy),
        other => panic!("{other:?}"),
    }
    match request.accept() {
        Err(Error::Connect {
            reason: CloseReason::TimedOut(_) | CloseReason::PeerDisconnected,
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_hellos_determine_negotiated_values() {
    let stage = Stage::new(&small());
    let mut config = Config::default();
    config.receive_window = Some(9);
    config.eager_size = Some(2000);
    config.connect_timeout = TIME_LIMIT;
    let connecting = connect_later(
        stage.connector.clone().config(&config),
        stage.listener.local_addr(),
    );
    let accepted = stage.listener.accept_timeout(TIME_LIMIT).unwrap();
    let connected = connecting.join().unwrap().unwrap();
    let (there, here) = (
        accepted.info().negotiated.unwrap(),
        connected.info().negotiated.unwrap(),
    );
    assert_eq!((there.send_window, there.recv_window), (9, 4));
    assert_eq!((here.send_window, here.recv_window), (4, 9));
    assert_eq!((there.send_eager, here.send_eager), (1000, 1000));
}

#[test]
fn empty_accept_is_reported() {
    let stage = Stage::new(&Config::default());
    assert!(stage.listener.try_accept().unwrap().is_none());
    let listener = stage.requests(&Config::default());
    assert!(listener.try_request().is_none());
    assert_eq!(listener.transports(), stage.listener.transports());
    let waited = stage.listener.accept_timeout(Duration::from_millis(20));
    assert!(matches!(waited, Err(Error::TimedOut)));
    assert!(stage.listener.transports().contains(&ip_and_transport().1));
}

#[test]
fn connections_arrive_through_each_method() {
    let stage = Stage::new(&Config::default());
    let addr = stage.listener.local_addr();
    let connecting = connect_later(stage.connector.clone(), addr);
    let incoming = stage.listener.incoming().next().unwrap().unwrap();
    drop((connecting.join().unwrap().unwrap(), incoming));

    let listener = Listener::builder()
        .engine(&stage.engine)
        .bind_requests((ip_and_transport().0, 0))
        .unwrap();
    let connecting = connect_later(stage.connector.clone(), listener.local_addr());
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    let accepted = request.accept().unwrap();
    drop((connecting.join().unwrap().unwrap(), accepted));

    let connecting = connect_later(stage.connector.clone(), addr);
    let accepted = stage.listener.accept().unwrap();
    drop((connecting.join().unwrap().unwrap(), accepted));
}

#[test]
#[expect(clippy::mutable_key_type, reason = "an endpoint is hashed as a handle")]
fn handles_are_distinguished() {
    let stage = Stage::new(&Config::default());
    let (first, second) = (stage.pair(), stage.pair());
    assert_eq!(first.0, first.0.clone());
    assert_ne!(first.0, second.0);
    assert_ne!(first.0.info().id, second.0.info().id);
    let all = std::collections::HashSet::from([first.0.clone(), first.0, second.0]);
    assert_eq!(all.len(), 2);
}

#[test]
fn listener_uses_the_config_of_its_builder() {
    let stage = Stage::new(&Config::default());
    let config = Config::default().with(|c| {
        c.receive_window = Some(7);
        c.connect_timeout = TIME_LIMIT;
    });
    let builder = Listener::builder().config(&config).engine(&stage.engine);
    let listener = builder.bind((ip_and_transport().0, 0)).unwrap();
    let connecting = connect_later(stage.connector.clone(), listener.local_addr());
    let accepted = (&listener).into_iter().next().unwrap().unwrap();
    let connected = connecting.join().unwrap().unwrap();
    assert_eq!(connected.info().negotiated.unwrap().send_window, 7);
    drop(accepted);
}

#[test]
fn missing_listener_is_reported_or_awaited() {
    let stage = Stage::new(&Config::default());
    let addr = stage.listener.local_addr();
    let patient = stage.connector.clone().retry_refused(true);
    let engine = stage.engine.clone();
    let hasty = stage.connector.clone();
    drop(stage);
    let refused = hasty.connect(addr).unwrap_err();
    let expected = matches!(
        refused,
        Error::Connect {
            reason: CloseReason::Refused,
            ..
        }
    );
    assert!(expected, "{refused}");
    let connecting = connect_later(patient, addr);
    let listener = Listener::builder().engine(&engine).bind(addr).unwrap();
    let accepted = listener.accept_timeout(TIME_LIMIT).unwrap();
    drop((connecting.join().unwrap().unwrap(), accepted));
}

#[test]
fn full_backlog_is_reported() {
    let stage = Stage::new(&Config::default());
    let config = common::with_time_to_connect(&Config::default());
    let builder = Listener::builder().config(&config).engine(&stage.engine);
    let builder = builder.backlog(1).half_open(1);
    let listener = builder.bind_requests((ip_and_transport().0, 0)).unwrap();
    let addr = listener.local_addr();
    let first = connect_later(stage.connector.clone(), addr);
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    let busy = stage.connector.connect(addr).unwrap_err();
    let expected = matches!(
        busy,
        Error::Connect {
            reason: CloseReason::PeerBusy,
            ..
        }
    );
    assert!(expected, "{busy}");
    drop((request.accept().unwrap(), first.join().unwrap().unwrap()));
}
