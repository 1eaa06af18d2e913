//! Peers that ask for a connection and then say nothing, or think better of it.

use std::{thread, time::Duration};

use rdmsg::{CloseReason, Error};
use toolbox::{PATIENCE, slowness};

use crate::{
    peer::Peer,
    scene::{Scene, config},
    wire::Hello,
};

/// They take all the places that there are, and honest ones are told; who tries again gets through
/// when their time is over.
#[test]
fn silent_peers_keep_others_out_for_no_longer_than_their_time() {
    const HALF_OPEN: u16 = 6;
    let mut config = config();
    // Theirs, from when they were accepted.
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
            .map(|_| requests.recv_timeout(PATIENCE).unwrap())
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
        config.connect_timeout = 3 * PATIENCE;
        let connector = scene.connector().config(&config).retry_refused(true);
        let client = scope.spawn(move || connector.connect(addr).unwrap());
        let request = listener.requests().recv_timeout(3 * PATIENCE).unwrap();
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

/// Whether the word of that comes before the application accepts, or while it does, or not at all.
#[test]
fn a_request_that_its_peer_withdraws_while_it_is_accepted_ends_as_a_connect() {
    let scene = Scene::new();
    let listener = scene.requests();
    let addr = listener.local_addr();
    for round in 0..60_u64 {
        let peer = Peer::request(addr, &Hello::GOOD.bytes());
        let request = listener.requests().recv_timeout(PATIENCE).unwrap();
        let withdrawing = thread::spawn(move || drop(peer));
        // At another moment each time.
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
