use std::{
    io::{Read, Write},
    thread,
};

use common::{connect_and_accept, connector, with_time_to_connect};
use rdmsg::{
    Completion, Config, Connector, DeviceCounters, Endpoint, Engine, EngineLimits, Error, Listener,
    Transport,
};

use crate::stage::{Stage, TIME_LIMIT, ip_and_transport};

#[test]
fn statistics_count_what_all_connections_did() {
    let stage = Stage::new(&Config::default());
    let (near, far) = stage.pair();
    near.send(b"one").unwrap();
    assert_eq!(*far.recv().unwrap(), *b"one");
    let statistics = stage.engine.statistics().unwrap();
    assert_eq!(statistics.connections, 2);
    assert_eq!(statistics.all.messages_sent, 1);
    // Over RDMA, this call reads the counters of the device.
    let _ = DeviceCounters::of(&near);
}

#[test]
fn a_shutdown_ends_everything_of_an_engine() {
    let limits = EngineLimits::default();
    let engine = Engine::with_limits(limits).unwrap();
    let config = with_time_to_connect(&Config::default());
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind((ip_and_transport().0, 0))
        .unwrap();
    let connector = Connector::new().config(&config);
    let (connected, accepted) = connect_and_accept(&connector, &listener);
    engine.shutdown();
    assert!(matches!(listener.accept(), Err(Error::EngineShutDown)));
    for error in [
        accepted.send(b"late").unwrap_err(),
        connected.recv_timeout(TIME_LIMIT).unwrap_err(),
    ] {
        assert!(
            matches!(&error, Error::Disconnected(reason) if reason.is_clean()),
            "{error}"
        );
    }
}

/// Receives completions until `what` returns true for one of them.
fn wait_for(endpoint: &Endpoint, what: fn(&Completion) -> bool) {
    while !what(&endpoint.next_completion_timeout(TIME_LIMIT).unwrap()) {}
}

#[test]
fn engine_asks_all_clients_to_leave() {
    let stage = Stage::new(&Config::default());
    let pairs = [(); 3].map(|()| stage.pair());
    // Clients and servers share the engine. The engine asks only the three clients to leave.
    assert_eq!(stage.engine.ask_to_leave().unwrap(), 3);
    assert_eq!(stage.engine.ask_to_leave().unwrap(), 3);
    for (client, server) in &pairs {
        wait_for(client, |it| matches!(it, Completion::PeerLeaving));
        client.send(b"the last request").unwrap();
        assert_eq!(
            server.recv_timeout(TIME_LIMIT).unwrap(),
            b"the last request"
        );
        assert!(server.try_next_completion().unwrap().is_none());
        server.send(b"the last answer").unwrap();
        assert_eq!(client.recv_timeout(TIME_LIMIT).unwrap(), b"the last answer");
        client.close().unwrap();
    }
    assert_eq!(stage.engine.drain(TIME_LIMIT).unwrap(), 0);
}

#[test]
fn leaving_engine_asks_later_clients() {
    let stage = Stage::new(&Config::default());
    let listener = stage.requests(&Config::default());
    assert_eq!(stage.engine.ask_to_leave().unwrap(), 0);
    let (connector, address) = (stage.connector.clone(), listener.local_addr());
    let connecting = thread::spawn(move || connector.connect(address).unwrap());
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    assert_eq!(
        stage.engine.ask_to_leave().unwrap(),
        0,
        "an unanswered request must not count as a client"
    );
    let accepted = request.accept().unwrap();
    let connected = connecting.join().unwrap();
    wait_for(&connected, |it| matches!(it, Completion::PeerLeaving));
    let (by_listener, server) = stage.pair();
    wait_for(&by_listener, |it| matches!(it, Completion::PeerLeaving));
    drop((accepted, server));
    stage.engine.clone().shutdown();
    let refused = stage.engine.ask_to_leave().unwrap_err();
    assert!(matches!(refused, Error::EngineShutDown), "{refused}");
}

/// `ask_to_leave` of an engine applies to message connections only, not to streams.
#[test]
fn leaving_engine_leaves_streams_alone() {
    let stage = Stage::new(&Config::default());
    let streams = Listener::builder()
        .engine(&stage.engine)
        .bind_stream((ip_and_transport().0, 0))
        .unwrap();
    let (connector, address) = (stage.connector.clone(), streams.local_addr().unwrap());
    let connecting = thread::spawn(move || connector.connect_stream(address).unwrap());
    let (mut server, _) = streams.accept().unwrap();
    let mut client = connecting.join().unwrap();
    assert_eq!(stage.engine.ask_to_leave().unwrap(), 0);
    client.write_all(b"goes on").unwrap();
    let mut bytes = [0; 7];
    server.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, *b"goes on");
}

#[test]
fn shared_engine_serves_unconfigured_users() {
    if ip_and_transport().1 == Transport::Memory {
        // The in-memory transport does not use the shared engine: each of its listeners creates its
        // own engine.
        return;
    }
    let listener = Listener::bind((ip_and_transport().0, 0)).unwrap();
    let (connected, accepted) = connect_and_accept(&connector(), &listener);
    assert!(Engine::shared().unwrap().statistics().unwrap().connections >= 2);
    connected.send(b"hello").unwrap();
    assert_eq!(*accepted.recv().unwrap(), *b"hello");
    drop(connect_and_accept(&connector(), &listener));
}
