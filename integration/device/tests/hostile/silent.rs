//! Tests of peers that request a connection and then send nothing, or withdraw the request.

use std::{thread, time::Duration};

use rdmsg::{CloseReason, Error};
use toolbox::{TIME_LIMIT, slowness};

use crate::{
    peer::Peer,
    scene::{Scene, config},
    wire::{ANSWER, DATA, FAILURE, Frame, HEADER_LEN, Hello, REQUEST},
};

/// Silent peers reach the limit of half-open connections, so the listener rejects another peer as
/// busy. After the silent peers have timed out, the other peer retries and succeeds.
#[test]
fn silent_peers_block_others_until_their_timeout() {
    const HALF_OPEN: u16 = 6;
    let mut config = config();
    // The listener drops a peer that is silent for this long after the accept.
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

/// The peer withdraws its request while the application accepts. The library can process the
/// withdrawal before, during or after the accept.
#[test]
fn request_withdrawn_during_accept_fails_as_connect() {
    let scene = Scene::new();
    let listener = scene.requests();
    let addr = listener.local_addr();
    for round in 0..60_u64 {
        let peer = Peer::request(addr, &Hello::GOOD.bytes());
        let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        let withdrawing = thread::spawn(move || drop(peer));
        // Vary the time at which the application accepts.
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

/// The listener shows a request to the application only after all private data of the request has
/// arrived. It rejects a peer that sends no private data, and a peer that sends a frame of another
/// kind instead of the private data.
#[test]
fn long_requests_are_shown_whole_or_turned_away() {
    let mut config = config();
    config.connect_timeout = Duration::from_secs(5).mul_f64(slowness());
    let scene = Scene::with(config);
    let listener = scene.requests();
    let long = Hello {
        features: Hello::LONG_REQUEST,
        ..Hello::GOOD
    };
    let connect = || Peer::connect(listener.local_addr(), &long.bytes());
    let data = |kind| {
        let frame = Frame {
            kind,
            ..Frame::data(&[7; 100])
        };
        frame.bytes()
    };
    let mut silent = connect();
    let failure = silent.receive();
    assert_eq!(
        (failure[0], &failure[12..HEADER_LEN]),
        (FAILURE, &[0, 0, 0, 3][..])
    );
    silent.wait_disconnected();
    silent.disconnect();
    for kind in [DATA, ANSWER] {
        let mut peer = connect();
        peer.send(&data(kind));
        peer.wait_disconnected();
        peer.disconnect();
    }
    assert!(
        listener.requests().is_empty(),
        "no incomplete request must be shown"
    );

    for accepts in [true, false] {
        let mut peer = connect();
        peer.send(&data(REQUEST));
        let request = listener.requests().recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(request.private_data(), [7; 100]);
        let endpoint = if accepts {
            Some(request.accept_with(b"welcome").unwrap())
        } else {
            request.reject(b"welcome").unwrap();
            None
        };
        let answer = peer.receive();
        assert_eq!(answer[0], ANSWER);
        assert_eq!(answer[12..HEADER_LEN], [0, 0, 0, u8::from(!accepts)]);
        assert_eq!(answer[HEADER_LEN..], *b"welcome");
        if let Some(endpoint) = endpoint {
            endpoint.abort(0);
        }
        peer.wait_disconnected();
        peer.disconnect();
    }
    scene.stage.bystander.assert_unaffected();
    drop(listener);
    scene.finish();
}
