//! Tests of peers that vanish without a disconnect, or without an answer that the protocol
//! requires.

use rdmsg::{CloseReason, Completion, Outgoing};
use toolbox::{Lab, TIME_LIMIT};

use crate::{
    scene::{ROLES, Scene, config, end},
    wire::{CLOSE, CLOSE_ACK, DATA, Frame, GRANT, HEADER_LEN, PING, PONG, WINDOW},
};

/// Dropping a peer has the same effect as killing its process: the kernel destroys the peer's queue
/// pair and id.
#[test]
fn peer_gone_after_frames_is_disconnect_without_close() {
    let scene = Scene::new();
    for role in ROLES {
        for frames in 0..=WINDOW.into() {
            let (mut peer, endpoint) = scene.connect(role);
            for _ in 0..frames {
                peer.send(&Frame::data(b"message").bytes());
                peer.send(&Frame::control(GRANT).bytes());
            }
            assert!(peer.flush());
            drop(peer);
            let (reason, messages) = end(&endpoint);
            assert_eq!(reason, CloseReason::PeerDisconnected);
            assert_eq!(
                messages.len(),
                frames,
                "all messages that have arrived must be delivered"
            );
            scene.stage.bystander.assert_unaffected();
        }
    }
    scene.finish();
}

/// The peer disconnects while the library has messages in flight and a thread is waiting for
/// credit.
#[test]
fn peer_gone_during_send_wakes_waiting_sender() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        let sender = endpoint.clone();
        let sender = std::thread::spawn(move || {
            let mut sent = 0;
            while sender.send_timeout(b"message", TIME_LIMIT).is_ok() {
                sent += 1;
            }
            sent
        });
        for _ in 0..WINDOW {
            assert_eq!(peer.receive()[0], DATA);
        }
        peer.disconnect();
        assert_eq!(end(&endpoint).0, CloseReason::PeerDisconnected);
        assert_eq!(sender.join().unwrap(), WINDOW);
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// An iWARP device completes a send when TCP has accepted the bytes. The library therefore requests
/// a confirmation from the peer's library, and reports each unconfirmed message as failed.
#[test]
fn messages_in_tcp_buffers_are_not_confirmed() {
    let scene = Scene::new();
    let is_iwarp = Lab::get().is_iwarp();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        let completion = || endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
        endpoint.send(Outgoing::from(b"first").with_id(1)).unwrap();
        assert_eq!(peer.receive()[0], DATA);
        if is_iwarp {
            assert_eq!(peer.receive()[0], PING);
            peer.send(&Frame::control(PONG).bytes());
        }
        assert!(matches!(completion(), Completion::Sent(1)));
        endpoint.send(Outgoing::from(b"second").with_id(2)).unwrap();
        assert_eq!(peer.receive()[0], DATA);
        if is_iwarp {
            assert_eq!(peer.receive()[0], PING);
        } else {
            assert!(matches!(completion(), Completion::Sent(2)));
        }
        peer.disconnect();
        if is_iwarp {
            let failed = completion();
            assert!(
                matches!(failed, Completion::Failed { id: 2, .. }),
                "{failed:?}"
            );
        }
        assert_eq!(end(&endpoint).0, CloseReason::PeerDisconnected);
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// The peer vanishes before it acknowledges the library's close.
#[test]
fn peer_gone_during_close_leaves_undelivered() {
    let scene = Scene::new();
    for (role, closes) in ROLES
        .into_iter()
        .flat_map(|role| [(role, false), (role, true)])
    {
        let (mut peer, endpoint) = scene.connect(role);
        endpoint.send(b"last").unwrap();
        let closer = endpoint.clone();
        let closer = std::thread::spawn(move || closer.close());
        assert_eq!(peer.receive()[HEADER_LEN..], *b"last");
        assert_eq!(peer.receive()[0], CLOSE);
        if closes {
            peer.send(&Frame::control(CLOSE).bytes());
            assert_eq!(peer.receive()[0], CLOSE_ACK);
        }
        drop(peer);
        let error = closer.join().unwrap().unwrap_err();
        assert!(
            matches!(error, rdmsg::Error::Undelivered(_)),
            "an acknowledgement by the device must not count as delivery: {error:?}"
        );
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// The peer violates the protocol and then does nothing; it does not even complete the disconnect.
/// The library must not wait for the peer's disconnect.
#[test]
fn peer_that_never_disconnects_is_disconnected() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        peer.send(&[]);
        let (reason, _) = end(&endpoint);
        assert!(
            matches!(reason, CloseReason::ProtocolViolation(_)),
            "{reason:?}"
        );
        scene.stage.bystander.assert_unaffected();
        drop(peer);
    }
    scene.finish();
}

/// The peer closes and then never disconnects, or never acknowledges the library's close. In both
/// cases the library waits only until `close_timeout` expires.
#[test]
fn peer_silent_during_close_hits_close_timeout() {
    let mut config = config();
    config.close_timeout = std::time::Duration::from_millis(200);
    let scene = Scene::with(config);
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        peer.send(&Frame::control(CLOSE).bytes());
        assert_eq!(peer.receive()[0], CLOSE);
        assert_eq!(end(&endpoint).0, CloseReason::PeerClosed);
        drop(peer);

        let (mut peer, endpoint) = scene.connect(role);
        // A ping shows that the peer is alive, but does not acknowledge the close.
        peer.send(&Frame::control(PING).bytes());
        let error = endpoint.close().unwrap_err();
        assert!(matches!(error, rdmsg::Error::Undelivered(_)), "{error:?}");
        assert_eq!(end(&endpoint).0, CloseReason::LocallyClosed);
        drop(peer);
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}
