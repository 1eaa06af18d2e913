//! Tests of hostile peers whose connections share receive buffers with other connections.

use std::thread;

use rdmsg::{Config, Connector, Endpoint};
use toolbox::{Lab, TIME_LIMIT};

use crate::{
    peer::DEPTH,
    scene::{Role, Scene, config, violated_field},
    wire::{Frame, GRANT},
};

/// The number of shared receive buffers that are reserved for each connection.
const SHARE: u32 = 17;
/// Connects a client to the scene's listener. The client follows the protocol, and has its own
/// receive buffers. Returns the client's and the server's endpoint.
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

/// In each of five rounds, a new peer sends 63 invalid frames at once, which exceed its credit. In
/// total, the peers send more invalid frames than there are shared buffers. The library then starts
/// a disconnect, which the peer does not complete.
#[test]
fn violation_returns_its_shared_buffers() {
    // These buffers suffice for two connections, even if each uses its maximum.
    let scene = Scene::with(sharing(4 * SHARE));
    let (client, server) = honest(&scene);
    let nonsense = Frame {
        flags: 9,
        ..Frame::control(GRANT)
    }
    .bytes();
    let mut rounds = 0;
    for _ in 0..5 {
        let (mut peer, endpoint) = scene.connect(Role::Client);
        peer.send_all(&vec![nonsense.clone(); DEPTH as usize - 1]);
        // The peer's connection ends 2 s after the violation. Until then, the honest connection
        // must deliver messages.
        while matches!(endpoint.try_recv(), Ok(None)) {
            client.send_timeout(b"honest", TIME_LIMIT).unwrap();
            assert_eq!(*server.recv_timeout(TIME_LIMIT).unwrap(), *b"honest");
            rounds += 1;
        }
        assert_eq!(violated_field(&endpoint), "flags");
    }
    println!("the honest connection delivered {rounds} messages before the other ones ended");
    // On iWARP the peer's connection ends immediately, together with its TCP stream.
    assert!(
        rounds > 50 || Lab::get().is_iwarp(),
        "the honest connection must deliver more than 50 messages, not {rounds}"
    );
    client.close().unwrap();
    drop((client, server));
    // A peer that exceeds its credit uses receives of other connections for a short time, so a
    // frame can arrive while no receive is posted.
    scene.finish_with_rnr_naks();
}
