use std::thread;

use rdmsg::{CloseReason, Config, Error};

use crate::stage::{Stage, TIME_LIMIT, pattern};

fn shared_receive_config(count: u32) -> Config {
    let mut config = Config::default();
    config.receive_window = Some(8);
    config.eager_size = Some(1000);
    config.shared_receive = Some(count);
    config
}

#[test]
fn shared_receives_deliver_to_the_right_connection() {
    let stage = Stage::new(&shared_receive_config(240));
    let pairs: Vec<_> = (0..6).map(|_| stage.pair()).collect();
    for round in 0..20_u8 {
        for (number, (near, _)) in (0_u8..).zip(&pairs) {
            near.send(&[number, round]).unwrap();
        }
        for (number, (_, far)) in (0_u8..).zip(&pairs) {
            let message = far.recv_timeout(TIME_LIMIT).unwrap();
            assert_eq!(*message, [number, round]);
        }
    }
    let (near, far) = &pairs[0];
    near.send(&pattern(100_000)).unwrap();
    assert!(*far.recv_timeout(TIME_LIMIT).unwrap() == pattern(100_000)[..]);
}

/// Each end of a connection needs 17 receives. Both ends take them from the same pool.
#[test]
fn too_few_shared_receives_are_named_in_error() {
    let exhausted = |error: &Error, of: u32, left: u32| {
        let Error::SharedReceivesExhausted {
            total,
            free,
            needed,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((*total, *free, *needed), (of, left, 17));
    };
    // 36 receives suffice for both ends of a connection, but not for the connecting end of a second
    // connection.
    let stage = Stage::new(&shared_receive_config(36));
    let pair = stage.pair();
    let addr = stage.listener.local_addr();
    let error = stage.connector.connect(addr).unwrap_err();
    exhausted(&error, 36, 2);
    drop(pair);
    // 59 receives suffice for three ends, but not for the accepting end of the second connection.
    let stage = Stage::new(&shared_receive_config(59));
    let (near, far) = stage.pair();
    let listener = stage.requests(&shared_receive_config(59));
    let (connector, addr) = (stage.connector.clone(), listener.local_addr());
    let connecting = thread::spawn(move || connector.connect(addr).unwrap_err());
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    let error = request.accept().unwrap_err();
    exhausted(&error, 59, 8);
    let error = connecting.join().unwrap();
    let reason = match error {
        Error::Connect { reason, .. } => reason,
        error => panic!("{error}"),
    };
    assert_eq!(reason, CloseReason::PeerOutOfResources);
    near.send(b"others go on").unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"others go on");
}

#[test]
fn refused_connect_is_retried_until_receives_are_free() {
    let config = shared_receive_config(59);
    let stage = Stage::new(&config);
    let pair = stage.pair();
    let listener = stage.requests(&config);
    let (connector, addr) = (stage.connector.clone(), listener.local_addr());
    let connector = connector.retry_refused(true);
    let connecting = thread::spawn(move || connector.connect(addr).unwrap());
    let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
    let error = request.accept().unwrap_err();
    assert!(matches!(error, Error::SharedReceivesExhausted { .. }));
    let (near, far) = pair;
    near.close().unwrap();
    assert!(far.recv_timeout(TIME_LIMIT).is_err());
    drop(far);
    let far = loop {
        let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        match request.accept() {
            Ok(endpoint) => break endpoint,
            // It is possible that the engine has not yet released the receives of the closed
            // connection.
            Err(Error::SharedReceivesExhausted { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let near = connecting.join().unwrap();
    near.send(b"message").unwrap();
    assert_eq!(far.recv_timeout(TIME_LIMIT).unwrap(), b"message");
}
