use rdmsg::{Config, Error};

use crate::stage::{PATIENCE, Stage, pattern};

fn sharing(count: u32) -> Config {
    let mut config = Config::default();
    config.receive_window = 8;
    config.eager_size = Some(1000);
    config.shared_receive = Some(count);
    config
}

#[test]
fn connections_that_share_receives_get_their_own_messages() {
    let stage = Stage::new(&sharing(200));
    let pairs: Vec<_> = (0..6).map(|_| stage.pair()).collect();
    for round in 0..20_u8 {
        for (number, (near, _)) in (0_u8..).zip(&pairs) {
            near.send(&[number, round]).unwrap();
        }
        for (number, (_, far)) in (0_u8..).zip(&pairs) {
            let message = far.recv_timeout(PATIENCE).unwrap();
            assert_eq!(*message, [number, round]);
        }
    }
    let (near, far) = &pairs[0];
    near.send(&pattern(100_000)).unwrap();
    assert!(*far.recv_timeout(PATIENCE).unwrap() == pattern(100_000)[..]);
}

#[test]
fn too_few_shared_receives_are_an_error_that_says_so() {
    let stage = Stage::new(&sharing(40));
    let mut pairs = Vec::new();
    let error = loop {
        let connecting = {
            let (connector, addr) = (stage.connector.clone(), stage.listener.local_addr());
            std::thread::spawn(move || connector.connect(addr))
        };
        let accepted = stage.listener.try_accept();
        match connecting.join().unwrap() {
            Ok(endpoint) => pairs.push((endpoint, accepted)),
            Err(error) => break error,
        }
        assert!(pairs.len() < 40, "each takes some");
    };
    assert!(
        matches!(
            error,
            Error::SharedReceivesExhausted { total: 40, .. } | Error::Connect { .. }
        ),
        "{error}"
    );
}
