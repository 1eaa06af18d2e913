//! Tests of established connections that the program has not accepted yet.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    thread,
};

use rdmsg::{CloseReason, Config, Connector, Endpoint, Error, Listener, Stream, Transport};

use crate::stage::{Stage, TIME_LIMIT, engine, ip_and_transport, rounds, small};

/// Waits until the connection ends, and returns the reason. Panics if a message arrives first.
fn wait_for_end(endpoint: &Endpoint) -> CloseReason {
    match endpoint.recv_timeout(TIME_LIMIT) {
        Err(Error::Disconnected(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_thread_binds_connects_and_accepts() {
    let stage = Stage::new(&Config::default());
    let near = stage
        .connector
        .connect(stage.listener.local_addr())
        .unwrap();
    near.send(b"early").unwrap();
    near.flush().unwrap();
    let far = stage.listener.accept_timeout(TIME_LIMIT).unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"early");
    assert!(stage.listener.try_accept().unwrap().is_none());
}

#[test]
fn one_thread_binds_connects_and_accepts_a_stream() {
    let listener = Listener::builder()
        .bind_stream((ip_and_transport().0, 0))
        .unwrap();
    let addr = listener.local_addr().unwrap();
    let mut near = Stream::connect_timeout(addr, TIME_LIMIT).unwrap();
    near.write_all(b"early").unwrap();
    let (mut far, peer) = listener.accept().unwrap();
    assert_eq!(peer, near.local_addr().unwrap());
    let mut bytes = [0; 5];
    far.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"early");
}

#[test]
fn a_peer_that_left_is_accepted_with_its_messages() {
    let stage = Stage::new(&Config::default());
    let addr = stage.listener.local_addr();
    let near = stage.connector.connect(addr).unwrap();
    near.send(b"and gone").unwrap();
    near.close().unwrap();
    let near = stage.connector.connect(addr).unwrap();
    near.abort(7);
    assert_eq!(wait_for_end(&near), CloseReason::LocallyAborted);
    let far = stage.listener.accept_timeout(TIME_LIMIT).unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"and gone");
    assert_eq!(wait_for_end(&far), CloseReason::PeerClosed);
    let far = stage.listener.accept_timeout(TIME_LIMIT).unwrap();
    assert_eq!(wait_for_end(&far), CloseReason::PeerAborted(7));
}

#[test]
fn storm_leaves_backlog_connections() {
    const BACKLOG: u16 = 5;
    const THREADS: usize = 8;
    const EACH: usize = 25;
    let stage = Stage::listening(&small(), |builder| builder.backlog(BACKLOG));
    let addr = stage.listener.local_addr();
    let connected: Vec<Endpoint> = thread::scope(|scope| {
        let storm = |_| {
            scope.spawn(|| {
                let connects = (0..EACH).map(|_| stage.connector.connect(addr));
                let mut connected = Vec::new();
                for result in connects {
                    match result {
                        Ok(endpoint) => connected.push(endpoint),
                        Err(Error::Connect { reason, .. }) => {
                            assert_eq!(reason, CloseReason::PeerBusy);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                connected
            })
        };
        let threads: Vec<_> = (0..THREADS).map(storm).collect();
        let connected = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        connected.collect()
    });
    assert_eq!(connected.len(), usize::from(BACKLOG));
    for near in &connected {
        near.send(b"x").unwrap();
    }
    for _ in 0..BACKLOG {
        let far = stage.listener.accept_timeout(TIME_LIMIT).unwrap();
        assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"x");
    }
    assert!(stage.listener.try_accept().unwrap().is_none());
}

#[test]
fn dropped_listener_rejects_its_backlog() {
    let stage = Stage::new(&Config::default());
    let (taken, far) = stage.pair();
    let left = stage
        .connector
        .connect(stage.listener.local_addr())
        .unwrap();
    left.send(b"never processed").unwrap();
    left.flush().unwrap();
    drop(stage.listener);
    assert_eq!(wait_for_end(&left), CloseReason::PeerBusy);
    let refused = left.close().unwrap_err();
    assert!(refused.to_string().contains("busy"), "{refused}");
    taken.send(b"it goes on").unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"it goes on");
}

#[test]
fn a_closed_listener_keeps_its_backlog() {
    let stage = Stage::new(&Config::default());
    let near = stage
        .connector
        .connect(stage.listener.local_addr())
        .unwrap();
    // The connecting side can report the connection as established before the accepting side does.
    // The flush waits until both sides have established the connection.
    near.send(b"early").unwrap();
    near.flush().unwrap();
    stage.listener.close();
    let far = stage.listener.accept().unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"early");
    assert!(matches!(
        stage.listener.accept(),
        Err(Error::ListenerClosed)
    ));
}

/// Connects, sends a question, and waits for the answer. Returns whether the connection was
/// established.
fn ask(connector: &Connector, address: SocketAddr) -> bool {
    match connector.connect(address) {
        Ok(near) => {
            near.send(b"question").unwrap();
            assert_eq!(near.recv_timeout(TIME_LIMIT).unwrap(), b"answer");
            true
        }
        Err(Error::Connect { reason, .. }) => {
            let refusals = [
                CloseReason::PeerBusy,
                CloseReason::Refused,
                // The kernel ends a request that arrives while the listener closes.
                CloseReason::PeerDisconnected,
                CloseReason::RejectedWithoutCause,
            ];
            // siw does not answer some of these requests, so they time out after 10 s.
            let unanswered = ip_and_transport().1 == Transport::Rdma
                && matches!(reason, CloseReason::Unreachable(_));
            assert!(unanswered || refusals.contains(&reason), "{reason}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// A connection can be established at the client before the listener has received the event about
/// this connection. If the listener closes in the meantime, it must still return the connection.
#[test]
fn close_breaks_no_established_connection() {
    const CLIENTS: usize = 12;
    let stage = Stage::new(&small());
    let remote_connector = Connector::new().config(&small()).engine(&engine());
    let is_in_memory = ip_and_transport().1 == Transport::Memory;
    // In round `n`, the program accepts `n % CLIENTS` connections before the listener closes.
    for round in 0..rounds(2 * CLIENTS, CLIENTS) {
        let builder = Listener::builder().config(&small()).engine(&stage.engine);
        let listener = builder.bind((ip_and_transport().0, 0)).unwrap();
        let address = listener.local_addr();
        let (accepted, established) = thread::scope(|scope| {
            let connect = |number| {
                let near = number % 2 == 0 || is_in_memory;
                let connector = if near {
                    &stage.connector
                } else {
                    &remote_connector
                };
                scope.spawn(move || ask(connector, address))
            };
            let clients: Vec<_> = (0..CLIENTS).map(connect).collect();
            let mut accepted = 0;
            let mut serve = |far: Endpoint| {
                assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"question");
                far.send(b"answer").unwrap();
                accepted += 1;
            };
            for _ in 0..round % CLIENTS {
                serve(listener.accept_timeout(TIME_LIMIT).unwrap());
            }
            listener.close();
            for far in &listener {
                serve(far.unwrap());
            }
            let established = clients.into_iter().map(|client| client.join().unwrap());
            let established = established.filter(|established| *established).count();
            (accepted, established)
        });
        assert_eq!(
            accepted, established,
            "each established connection must be accepted, in round {round}"
        );
    }
}

#[test]
fn dropped_listener_rejects_late_connections() {
    const CLIENTS: usize = 8;
    let stage = Stage::new(&small());
    for taken in 0..CLIENTS {
        let builder = Listener::builder().config(&small()).engine(&stage.engine);
        let listener = builder.bind((ip_and_transport().0, 0)).unwrap();
        let address = listener.local_addr();
        thread::scope(|scope| {
            let connect = |_| scope.spawn(|| stage.connector.connect(address));
            let clients: Vec<_> = (0..CLIENTS).map(connect).collect();
            let far = (0..taken).map(|_| listener.accept_timeout(TIME_LIMIT).unwrap());
            let far: Vec<_> = far.collect();
            listener.close();
            drop(listener);
            far.iter().for_each(|far| far.send(b"taken").unwrap());
            let answers = clients.into_iter().map(|client| {
                let near = client.join().unwrap().ok()?;
                match near.recv_timeout(TIME_LIMIT) {
                    Ok(message) => Some(message == b"taken"),
                    Err(Error::Disconnected(CloseReason::PeerBusy)) => None,
                    Err(error) => panic!("{error}"),
                }
            });
            assert_eq!(answers.flatten().count(), taken);
        });
    }
}

#[test]
fn shut_down_engine_rejects_its_backlog() {
    let stage = Stage::new(&Config::default());
    let clients = engine();
    let connector = stage.connector.clone().engine(&clients);
    let near = connector.connect(stage.listener.local_addr()).unwrap();
    near.flush().unwrap();
    stage.engine.shutdown();
    assert_eq!(wait_for_end(&near), CloseReason::PeerBusy);
    assert!(matches!(
        stage.listener.accept(),
        Err(Error::EngineShutDown)
    ));
}

#[test]
fn unanswered_request_is_rejected_as_busy() {
    let mut config = Config::default();
    config.connect_timeout = std::time::Duration::from_millis(200);
    let stage = Stage::new(&Config::default());
    let listener = stage.requests(&config);
    let refused = stage.connector.connect(listener.local_addr()).unwrap_err();
    match refused {
        Error::Connect { reason, .. } => assert_eq!(reason, CloseReason::PeerBusy),
        error => panic!("{error}"),
    }
    assert_eq!(listener.requests().len(), 1);
}
