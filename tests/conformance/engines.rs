use rdmsg::{Connector, DeviceCounters, Engine, EngineLimits, Error, Listener};

use crate::stage::{Stage, TIME_LIMIT, place};

#[test]
fn statistics_count_what_all_connections_did() {
    let stage = Stage::new(&rdmsg::Config::default());
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
    let config = rdmsg::Config::default();
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind((place().0, 0))
        .unwrap();
    let addr = listener.local_addr();
    let connecting = std::thread::spawn(move || Connector::new().connect(addr).unwrap());
    let accepted = listener.accept_timeout(TIME_LIMIT).unwrap();
    let connected = connecting.join().unwrap();
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

#[test]
fn shared_engine_serves_unconfigured_users() {
    let listener = Listener::bind((place().0, 0)).unwrap();
    let addr = listener.local_addr();
    let connecting =
        std::thread::spawn(move || rdmsg::Endpoint::connect_timeout(addr, TIME_LIMIT).unwrap());
    let accepted = listener.accept().unwrap();
    let connected = connecting.join().unwrap();
    assert!(Engine::shared().unwrap().statistics().unwrap().connections >= 2);
    connected.send(b"hello").unwrap();
    assert_eq!(*accepted.recv().unwrap(), *b"hello");
    let again = std::thread::spawn(move || rdmsg::Endpoint::connect(addr).unwrap());
    drop(listener.accept().unwrap());
    drop(again.join().unwrap());
}
