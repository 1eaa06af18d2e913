use std::{thread, time::Duration};

use rdmsg::{CloseReason, Config, Endpoint, Error, Group, Listener, crossbeam_channel::select};

use crate::stage::{Stage, TIME_LIMIT, small};

type Connecting = thread::JoinHandle<Result<Endpoint, Error>>;

fn connect(stage: &Stage) -> Connecting {
    let (connector, addr) = (stage.connector.clone(), stage.listener.local_addr());
    thread::spawn(move || connector.connect(addr))
}

fn reason(result: Result<Endpoint, Error>) -> CloseReason {
    match result {
        Err(Error::Connect { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn established_connections_come_through_a_channel() {
    let stage = Stage::new(&small());
    // Establish one connection before the first call of `accepted`.
    let first = connect(&stage).join().unwrap().unwrap();
    let connecting: Vec<_> = (0..9).map(|_| connect(&stage)).collect();
    let mut endpoints = Vec::new();
    let group = Group::new();
    while endpoints.len() < 10 {
        select! {
            recv(stage.listener.accepted()) -> endpoint => {
                endpoints.push(endpoint.unwrap().unwrap());
            }
            recv(group.completions()) -> completion => panic!("{completion:?}"),
            default(TIME_LIMIT) => panic!("no connection arrived"),
        }
    }
    let mut connected = vec![first];
    for connecting in connecting {
        connected.push(connecting.join().unwrap().unwrap());
    }
    for endpoint in &connected {
        endpoint.send(b"x").unwrap();
    }
    for endpoint in &endpoints {
        assert_eq!(endpoint.recv_timeout(TIME_LIMIT).unwrap(), b"x");
    }
    // After the calls of `accepted`, `accept` still works and returns a later connection.
    let connecting = connect(&stage);
    let accepted = stage.listener.accept_timeout(TIME_LIMIT).unwrap();
    drop((connecting.join().unwrap().unwrap(), accepted));
}

#[test]
fn backlog_bounds_unaccepted_connections() {
    let stage = Stage::listening(&small(), |builder| builder.backlog(3));
    let established = stage.listener.accepted();
    let connected: Vec<_> = (0..3)
        .map(|_| connect(&stage).join().unwrap().unwrap())
        .collect();
    assert_eq!(
        reason(connect(&stage).join().unwrap()),
        CloseReason::PeerBusy
    );
    drop(established.recv_timeout(TIME_LIMIT).unwrap().unwrap());
    let another = connect(&stage).join().unwrap().unwrap();
    for _ in 0..3 {
        established.recv_timeout(TIME_LIMIT).unwrap().unwrap();
    }
    drop((connected, another));
}

#[test]
fn closed_listener_returns_pending_then_ends() {
    let stage = Stage::new(&Config::default());
    let listener = &stage.listener;
    let established = listener.accepted();
    let connected = connect(&stage).join().unwrap().unwrap();
    // The connecting side can report the connection as established before the accepting side does.
    // Wait until the accepting side has established it, too.
    while established.is_empty() {
        thread::yield_now();
    }
    let addr = listener.local_addr();
    listener.close();
    listener.close();
    // The address of a closed listener can be bound again.
    let again = Listener::builder()
        .engine(&stage.engine)
        .bind(addr)
        .unwrap();
    let accepted = established.iter().last().unwrap().unwrap();
    assert!(matches!(listener.accept(), Err(Error::ListenerClosed)));
    assert!(matches!(listener.try_accept(), Err(Error::ListenerClosed)));
    assert!(listener.incoming().next().is_none());
    connected.send(b"it goes on").unwrap();
    assert_eq!(accepted.recv_timeout(TIME_LIMIT).unwrap(), b"it goes on");
    // When `close` returns, the address is no longer in use, so a connect is refused.
    again.close();
    assert_eq!(
        reason(common::connector().connect(addr)),
        CloseReason::Refused
    );
}

#[test]
fn closed_listener_rejects_requests() {
    let stage = Stage::new(&Config::default());
    let listener = stage.requests(&Config::default());
    let connect = || {
        let (connector, addr) = (stage.connector.clone(), listener.local_addr());
        thread::spawn(move || connector.connect(addr))
    };
    let (waits, taken) = (connect(), connect());
    while listener.requests().len() < 2 {
        thread::yield_now();
    }
    let request = listener.requests().recv().unwrap();
    listener.close();
    let accepted = request.accept().unwrap();
    let mut reasons = [waits, taken].map(|connecting| connecting.join().unwrap());
    reasons.sort_by_key(Result::is_err);
    let [connected, turned_away] = reasons;
    assert_eq!(reason(turned_away), CloseReason::PeerBusy);
    drop((connected.unwrap(), accepted));
}

#[test]
fn close_wakes_threads_that_accept() {
    let stage = Stage::new(&Config::default());
    let requests = stage.requests(&Config::default());
    thread::scope(|scope| {
        let listener = &stage.listener;
        let accepting = scope.spawn(|| listener.accept());
        let incoming = scope.spawn(|| listener.incoming().count());
        let request = scope.spawn(|| requests.requests().recv());
        let established = scope.spawn(|| listener.accepted().recv());
        listener.close();
        requests.close();
        let accepted = accepting.join().unwrap();
        assert!(matches!(accepted, Err(Error::ListenerClosed)));
        assert_eq!(incoming.join().unwrap(), 0);
        assert!(request.join().unwrap().is_err());
        assert!(established.join().unwrap().is_err());
    });
}

#[test]
fn a_drain_waits_for_the_ends_of_all_connections() {
    let stage = Stage::new(&Config::default());
    let (near, far) = stage.pair();
    assert_eq!(stage.engine.drain(Duration::ZERO).unwrap(), 2);
    assert!(matches!(
        stage.listener.accept(),
        Err(Error::ListenerClosed)
    ));
    near.send(b"it goes on").unwrap();
    let draining = {
        let engine = stage.engine.clone();
        thread::spawn(move || engine.drain(TIME_LIMIT))
    };
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"it goes on");
    far.send(b"last").unwrap();
    // Dropping the endpoint closes the connection in the background. The drain waits until the
    // engine has sent the message `last`.
    drop(far);
    assert_eq!(near.recv_timeout(TIME_LIMIT).unwrap(), b"last");
    drop(near);
    assert_eq!(draining.join().unwrap().unwrap(), 0);
    assert_eq!(stage.engine.statistics().unwrap().connections, 0);
    assert_eq!(stage.engine.drain(TIME_LIMIT).unwrap(), 0);
    let engine = stage.engine.clone();
    stage.engine.shutdown();
    assert!(matches!(
        engine.drain(TIME_LIMIT),
        Err(Error::EngineShutDown)
    ));
}

#[test]
fn a_shutdown_is_the_last_item_of_the_channel() {
    let stage = Stage::new(&Config::default());
    let listener = stage.listener;
    let established = listener.accepted();
    stage.engine.shutdown();
    assert!(matches!(
        established.recv_timeout(TIME_LIMIT),
        Ok(Err(Error::EngineShutDown))
    ));
    assert!(established.recv().is_err());
    assert!(matches!(listener.accept(), Err(Error::EngineShutDown)));
}

#[test]
fn bind_waits_for_an_address_in_use() {
    let stage = Stage::new(&small());
    let address = stage.listener.local_addr();
    let builder = Listener::builder().config(&small()).engine(&stage.engine);
    let in_use = builder.bind(address).unwrap_err();
    assert!(
        matches!(in_use, Error::Bind { error, .. } if error.errno == libc::EADDRINUSE),
        "{in_use}"
    );
    let brief = builder.clone().bind_within(Duration::from_millis(2));
    assert!(matches!(brief.bind(address), Err(Error::Bind { .. })));
    let patient = builder.bind_within(TIME_LIMIT);
    let rebound = thread::scope(|scope| {
        let waits = scope.spawn(|| patient.bind(address).unwrap());
        stage.listener.close();
        waits.join().unwrap()
    });
    assert_eq!(rebound.local_addr(), address);
}
