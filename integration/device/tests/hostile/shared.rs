//! Tests of hostile connections that share receive buffers with honest ones.

use std::thread;

use rdmsg::{Config, Connector, Endpoint};
use toolbox::{Lab, TIME_LIMIT};

use crate::{
    peer::DEPTH,
    scene::{Role, Scene, config, violated_field},
    wire::{Frame, GRANT},
};

/// Number of buffers that are reserved for each connection.
const SHARE: u32 = 14;
/// Connects one honest client, with its own receive buffers, to the scene's listener. Returns the
/// client and the server.
fn honest(scene: &Scene) -> (Endpoint, Endpoint) {
    let mut own = config();
    own.shared_receive = None;
    let connector = Connector::new().config(&own).engine(&scene.stage.engine);
    let address = scene.stage.listener.local_addr();
    let client = thread::spawn(move || connector.connect(address).unwrap());
    let server = scene.stage.listener.accept_timeout(TIME_LIMIT).unwrap();
    (client.join().unwrap(), server)
}

fn sharing(count: u32) -> Config {
    let mut config = config();
    config.shared_receive = Some(count);
    config
}

/// The peer sends more invalid frames than there are shared buffers, and does not confirm the
/// disconnect.
#[test]
fn violation_returns_its_shared_buffers() {
    // Room for two connections with all their buffers in use.
    let scene = Scene::with(sharing(4 * SHARE));
    let (client, server) = honest(&scene);
    let nonsense = Frame {
        flags: 9,
        ..Frame::control(GRANT)
    }
    .bytes();
    for _ in 0..5 {
        let (mut peer, endpoint) = scene.connect(Role::Client);
        peer.send_all(&vec![nonsense.clone(); DEPTH as usize - 1]);
        let mut rounds = 0;
        // Until the connection ends, 2 s after the violation.
        while matches!(endpoint.try_recv(), Ok(None)) {
            client.send_timeout(b"honest", TIME_LIMIT).unwrap();
            assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"honest");
            rounds += 1;
        }
        println!("{rounds} messages meanwhile");
        // On iWARP, the end of the TCP stream ends the connection at once.
        assert!(
            rounds > 10 || Lab::get().is_iwarp(),
            "only {rounds} messages came through meanwhile"
        );
        assert_eq!(violated_field(&endpoint), "flags");
    }
    client.close().unwrap();
    drop((client, server));
    // A peer that exceeds its credit may find no posted receive, and briefly uses receives of other
    // connections.
    scene.finish_with_rnr_naks();
}
