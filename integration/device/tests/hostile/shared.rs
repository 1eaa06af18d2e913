//! Peers of connections that share receives with those of honest ones.

use std::thread;

use rdmsg::{Config, Connector, Endpoint};
use toolbox::{Lab, PATIENCE};

use crate::{
    peer::DEPTH,
    scene::{Role, Scene, config, violated_field},
    wire::{Frame, GRANT},
};

/// Each connection keeps so many buffers for itself.
const SHARE: u32 = 14;
/// One honest connection to the scene's listener: the client, with buffers of its own, and the
/// server.
fn honest(scene: &Scene) -> (Endpoint, Endpoint) {
    let mut own = config();
    own.shared_receive = None;
    let connector = Connector::new().config(&own).engine(&scene.stage.engine);
    let address = scene.stage.listener.local_addr();
    let client = thread::spawn(move || connector.connect(address).unwrap());
    let server = scene.stage.listener.accept_timeout(PATIENCE).unwrap();
    (client.join().unwrap(), server)
}

fn sharing(count: u32) -> Config {
    let mut config = config();
    config.shared_receive = Some(count);
    config
}

/// It sends more than there are buffers, all of it nonsense, and does not answer when it is
/// disconnected.
#[test]
fn a_violation_holds_back_no_buffer_that_others_share() {
    // Room for two, whatever they do.
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
        // Until it is gone, two seconds after it broke the protocol.
        while matches!(endpoint.try_recv(), Ok(None)) {
            client.send_timeout(b"honest", PATIENCE).unwrap();
            assert_eq!(*server.recv_timeout(PATIENCE).unwrap(), *b"honest");
            rounds += 1;
        }
        println!("{rounds} messages meanwhile");
        // Where it is iWARP, its end is that of a stream, and known at once.
        assert!(
            rounds > 10 || Lab::get().is_iwarp(),
            "only {rounds} messages came through meanwhile"
        );
        assert_eq!(violated_field(&endpoint), "flags");
    }
    client.close().unwrap();
    drop((client, server));
    // Whoever sends more than it may finds no receive at some time, and takes some of others for a
    // moment.
    scene.finish_with_rnr_naks();
}
