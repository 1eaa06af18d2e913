//! Tests of peers that send too many control frames, answer a ping twice, or answer no pings.

use std::time::Duration;

use rdmsg::CloseReason;
use toolbox::TIME_LIMIT;

use crate::{
    peer::DEPTH,
    scene::{ROLES, Scene, applies, config, end, violated_field},
    wire::{CLOSE, CONTROL_RECEIVES, Frame, GRANT, PING, PONG},
};

#[test]
fn pings_up_to_the_receives_are_accepted() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        for _ in 0..CONTROL_RECEIVES {
            peer.send(&Frame::control(PING).bytes());
        }
        for _ in 0..CONTROL_RECEIVES {
            assert_eq!(peer.receive()[0], PONG);
        }
        for _ in 0..CONTROL_RECEIVES {
            peer.send(&Frame::control(GRANT).bytes());
        }
        // Check that the connection still delivers messages.
        peer.send(&Frame::data(b"still here").bytes());
        assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"still here");
        peer.disconnect();
        assert_eq!(end(&endpoint).0, CloseReason::PeerDisconnected);
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// The peer answers a ping twice.
#[test]
fn a_second_pong_is_named() {
    let mut config = config();
    config.keepalive_interval = Some(Duration::from_secs(1));
    config.keepalive_timeout = TIME_LIMIT;
    let scene = Scene::with(config);
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        assert_eq!(peer.receive()[0], PING);
        peer.send_all(&[Frame::control(PONG).bytes(), Frame::control(PONG).bytes()]);
        peer.wait_disconnected();
        peer.disconnect();
        assert_eq!(violated_field(&endpoint), "kind");
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// The peer receives pings and sends no frames. The peer's device acknowledges the pings, but an
/// acknowledgement does not prove that the peer's program is alive.
#[test]
fn a_peer_that_answers_no_ping_is_dead() {
    let mut config = config();
    config.keepalive_interval = Some(Duration::from_millis(50));
    config.keepalive_timeout = Duration::from_millis(200);
    let scene = Scene::with(config);
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        assert_eq!(peer.receive()[0], PING);
        assert_eq!(end(&endpoint).0, CloseReason::KeepaliveTimeout);
        peer.disconnect();
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// The peer ignores its credit and sends control frames faster than the library polls, while other
/// connections exchange messages. RNR NAKs slow down the peer's device, and the peer's connection
/// survives.
#[test]
fn ping_flood_harms_no_other_connection() {
    const ROUNDS: u32 = 8;
    if !applies("senders that wait for a receive (RNR NAK)") {
        return;
    }
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        for _ in 0..ROUNDS {
            for _ in 0..DEPTH - 1 {
                peer.send(&Frame::control(PING).bytes());
            }
            scene.stage.bystander.assert_unaffected();
            assert!(peer.flush());
            for _ in 0..DEPTH - 1 {
                assert_eq!(peer.receive()[0], PONG);
            }
        }
        peer.send(&Frame::control(CLOSE).bytes());
        while peer.receive()[0] != CLOSE {}
        peer.disconnect();
        assert_eq!(end(&endpoint).0, CloseReason::PeerClosed);
    }
    scene.finish_with_rnr_naks();
}
