//! Tests of peers that request a connection and then fall silent or withdraw the request.

use std::{thread, time::Duration};

use rdmsg::{CloseReason, Error};
use toolbox::{TIME_LIMIT, slowness};

use crate::{
    peer::Peer,
    scene::{Scene, config},
    wire::Hello,
};

/// Silent peers occupy all places for half-open connections, so the listener rejects an honest peer
/// as busy. Its retries succeed when the silent peers have timed out.
#[test]
fn silent_peers_block_others_until_their_timeout() {
    const HALF_OPEN: u16 = 6;
    let mut config = config();
    // The silent peers' timeout, from the accept on.
    config.connect_timeout = Duration::from_secs(10).mul_f64(slowness());
    let scene = Scene::with(config.clone());
    let listener = scene.requests_with(|builder| builder.half_open(HALF_OPEN));
    let addr = listener.local_addr();
    thread::scope(|scope| {
        let peers: Vec<_> = (0..HALF_OPEN)
            .map(|_| Peer::request(addr, &Hello::GOOD.bytes()))
            .collect();
        let requests = listener.requests();
        let accepting: Vec<_> = (0..HALF_OPEN)
            .map(|_| requests.recv_timeout(TIME_LIMIT).unwrap())
            .map(|request| scope.spawn(move || request.accept()))
            .collect();
        let error = scene.connector().connect(addr).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Connect {
                    reason: CloseReason::PeerBusy,
                    ..
                }
            ),
            "{error:?}"
        );
        config.connect_timeout = 3 * TIME_LIMIT;
        let connector = scene.connector().config(&config).retry_refused(true);
        let client = scope.spawn(move || connector.connect(addr).unwrap());
        let request = listener.requests().recv_timeout(3 * TIME_LIMIT).unwrap();
        let server = request.accept().unwrap();
        client.join().unwrap().close().unwrap();
        drop(server);
        for accepting in accepting {
            let error = accepting.join().unwrap().unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::Connect {
                        reason: CloseReason::TimedOut(_),
                        ..
                    }
                ),
                "{error:?}"
            );
        }
        drop(peers);
    });
    drop(listener);
    scene.finish();
}

/// The withdrawal is processed before the application accepts, or during the accept, or after it.
#[test]
fn request_withdrawn_during_accept_fails_as_connect() {
    let scene = Scene::new();
    let listener = scene.requests();
    let addr = listener.local_addr();
    for round in 0..60_u64 {
        let peer = Peer::request(addr, &Hello::GOOD.bytes());
        let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        let withdrawing = thread::spawn(move || drop(peer));
        // Vary the moment.
        for _ in 0..round % 20 * 1000 {
            std::hint::spin_loop();
        }
        let error = request.accept().unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        withdrawing.join().unwrap();
    }
    drop(listener);
    scene.finish();
}
