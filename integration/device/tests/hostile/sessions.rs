//! Tests of peers that violate the rules of sessions. In some tests the peer connects, in others it
//! listens. A violation ends only the current attempt to resume. The session still delivers each
//! message once.

use std::{net::SocketAddr, thread, time::Duration};

use rdmsg::{Config, Endpoint, status::CmEventType};
use toolbox::{Deadline, TIME_LIMIT};

use crate::{
    peer::Peer,
    scene::{Scene, config},
    wire::{DATA, Frame, HEADER_LEN, Hello, PING, PONG},
};

/// Bits in the field `features` of a hello.
const SESSION: u16 = 16;
const RESUMES: u16 = 32;

/// Codes in the private data of a rejection.
const BUSY: u16 = 8;
const UNKNOWN: u16 = 10;

const ID_LEN: usize = 12;

fn with_sessions() -> Config {
    config().with(|config| config.resume = TIME_LIMIT)
}

/// Returns a hello with the feature bits `features`, followed by `data`.
fn hello(features: u16, data: &[u8]) -> Vec<u8> {
    let len = Hello::LEN + data.len() as u8;
    let mut bytes = Hello {
        features,
        ..Hello::GOOD
    }
    .bytes();
    bytes[5] = len;
    bytes.extend(data);
    bytes
}

/// Returns the hello of a peer that requests to resume a session.
fn request(id: &[u8], epoch: u32, received: u32) -> Vec<u8> {
    let numbers = [epoch.to_be_bytes(), received.to_be_bytes()];
    hello(SESSION | RESUMES, &[id, numbers.as_flattened()].concat())
}

/// Returns the data that follows a hello.
fn data_after_hello(hello: &[u8]) -> Vec<u8> {
    hello[Hello::LEN.into()..hello[5].into()].to_vec()
}

/// Sends `request`, which the library must reject. Returns the code of the rejection.
fn rejected(addr: SocketAddr, request: &[u8]) -> u16 {
    let event = Peer::request(addr, request).event(CmEventType::REJECTED);
    let data = event.private_data();
    assert_eq!(&data[..4], b"rdmR");
    u16::from_be_bytes([data[6], data[7]])
}

/// Sends requests to resume the session, with a higher epoch each time, until the library accepts a
/// request. Returns the peer, and the data that follows the hello in the acceptance.
fn resume(addr: SocketAddr, id: &[u8], epoch: &mut u32, received: u32) -> (Peer, Vec<u8>) {
    let mut deadline = Deadline::after(TIME_LIMIT);
    loop {
        *epoch += 1;
        let request = request(id, *epoch, received);
        let mut peer = Peer::request(addr, &request);
        let event = peer.answer();
        if event.event() == CmEventType::ESTABLISHED {
            let data = data_after_hello(event.private_data());
            peer.exchange_first_frames(&request);
            return (peer, data);
        }
        assert_eq!(event.event(), CmEventType::REJECTED);
        assert_eq!(event.private_data()[7], BUSY as u8);
        assert!(!deadline.is_over(), "the session was not resumed in time");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a session with the library. Returns both ends of the connection, and the session's id.
fn begin(scene: &Scene) -> (Peer, Endpoint, Vec<u8>) {
    let addr = scene.stage.listener.local_addr();
    thread::scope(|scope| {
        let connecting = scope.spawn(move || {
            let request = hello(SESSION, b"");
            let mut peer = Peer::request(addr, &request);
            let event = peer.event(CmEventType::ESTABLISHED);
            peer.exchange_first_frames(&request);
            let id = data_after_hello(event.private_data());
            (peer, id)
        });
        let endpoint = scene.stage.listener.accept_timeout(TIME_LIMIT).unwrap();
        let (peer, id) = connecting.join().unwrap();
        assert_eq!(id.len(), ID_LEN);
        (peer, endpoint, id)
    })
}

/// Sends a message in each direction. The library must send its message without sending a ping
/// first.
fn assert_exchange(peer: &mut Peer, endpoint: &Endpoint) {
    peer.send(&Frame::data(b"well").bytes());
    assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"well");
    endpoint.send(b"so am I").unwrap();
    let frame = peer.receive();
    assert_eq!((frame[0], &frame[HEADER_LEN..]), (DATA, &b"so am I"[..]));
}

fn finish(scene: Scene, peer: Peer, endpoint: Endpoint) {
    endpoint.abort(0);
    drop((peer, endpoint));
    scene.finish();
}

#[test]
fn guessed_or_malformed_requests_are_rejected_by_name() {
    let scene = Scene::with(with_sessions());
    let addr = scene.stage.listener.local_addr();
    let (mut peer, endpoint, id) = begin(&scene);
    for at in 0..ID_LEN {
        let mut guess = id.clone();
        guess[at] ^= 1;
        assert_eq!(rejected(addr, &request(&guess, 1, 0)), UNKNOWN, "byte {at}");
    }
    let whole = [&id[..], &[0, 0, 0, 1, 0, 0, 0, 0]].concat();
    for len in [0, 12, 16, 19] {
        let short = hello(SESSION | RESUMES, &whole[..len]);
        assert_eq!(rejected(addr, &short), UNKNOWN, "{len} bytes");
    }
    let without = hello(RESUMES, &whole);
    assert_eq!(rejected(addr, &without), UNKNOWN, "without bit 4");
    assert!(scene.stage.listener.try_accept().unwrap().is_none());
    assert_exchange(&mut peer, &endpoint);
    scene.stage.bystander.assert_unaffected();
    finish(scene, peer, endpoint);
}

#[test]
fn old_epochs_and_impossible_numbers_are_refused() {
    let scene = Scene::with(with_sessions());
    let addr = scene.stage.listener.local_addr();
    let (mut peer, endpoint, id) = begin(&scene);
    peer.send(&Frame::data(b"received").bytes());
    assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"received");
    endpoint.send(b"again").unwrap();
    assert_eq!(peer.receive()[0], DATA);
    peer.disconnect();
    let mut epoch = 4;
    let (mut peer, theirs) = resume(addr, &id, &mut epoch, 0);
    assert_eq!(theirs, 1_u32.to_be_bytes());
    assert_eq!(peer.receive()[HEADER_LEN..], *b"again");
    for old in [epoch, 4, 0] {
        assert_eq!(rejected(addr, &request(&id, old, 0)), BUSY, "{old}");
    }
    // These counts are impossible, because the library has sent only one message so far.
    for received in [2, 1 << 31, u32::MAX] {
        let impossible = request(&id, epoch + 100, received);
        assert_eq!(rejected(addr, &impossible), BUSY, "{received}");
    }
    assert_exchange(&mut peer, &endpoint);
    scene.stage.bystander.assert_unaffected();
    finish(scene, peer, endpoint);
}

#[test]
fn stranger_is_refused_while_the_peer_answers() {
    let scene = Scene::with(with_sessions());
    let addr = scene.stage.listener.local_addr();
    let (mut peer, endpoint, id) = begin(&scene);
    for epoch in [1, 2, u32::MAX] {
        assert_eq!(rejected(addr, &request(&id, epoch, 0)), BUSY);
        assert_eq!(peer.receive()[0], PING);
        peer.send(&Frame::control(PONG).bytes());
        // The library processes frames in order. After this exchange, it has therefore processed
        // the pong.
        assert_exchange(&mut peer, &endpoint);
    }
    scene.stage.bystander.assert_unaffected();
    finish(scene, peer, endpoint);
}

/// The old connection stays established, but its peer does not answer the library's ping. The
/// library rejects requests to resume until the pong is overdue, and then accepts the next request.
#[test]
fn connection_without_answers_gives_way() {
    let scene = Scene::with(with_sessions());
    let addr = scene.stage.listener.local_addr();
    let (mut old, endpoint, id) = begin(&scene);
    old.send(&Frame::data(b"before").bytes());
    assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"before");
    let mut epoch = 0;
    let (mut peer, theirs) = resume(addr, &id, &mut epoch, 0);
    assert!(epoch > 1, "the library must reject the first request");
    assert_eq!(theirs, 1_u32.to_be_bytes());
    old.wait_disconnected();
    old.disconnect();
    assert_exchange(&mut peer, &endpoint);
    scene.stage.bystander.assert_unaffected();
    finish(scene, peer, endpoint);
}

#[test]
fn wrong_answers_to_a_resume_end_their_attempt_alone() {
    let scene = Scene::with(with_sessions());
    let server = scene.server();
    let id = *b"twelve bytes";
    let (connector, addr) = (scene.connector(), server.addr);
    let connecting = thread::spawn(move || connector.connect(addr).unwrap());
    let (mut peer, _) = server.accept_next(&hello(SESSION, &id));
    let endpoint = connecting.join().unwrap();
    endpoint.send(b"once").unwrap();
    assert_eq!(peer.receive()[HEADER_LEN..], *b"once");
    peer.disconnect();
    let mut last = 0;
    for answer in [
        hello(SESSION, b""),
        hello(SESSION, &[0; 3]),
        hello(SESSION, &[0; 5]),
        hello(0, &[0; 4]),
        hello(SESSION, &[0, 0, 0, 2]),
        hello(SESSION, &[0xff; 4]),
    ] {
        let (mut peer, asked) = server.answer_next(&answer);
        let asked = data_after_hello(&asked);
        assert_eq!(asked[..ID_LEN], id);
        let epoch = u32::from_be_bytes(asked[ID_LEN..][..4].try_into().unwrap());
        assert!(
            epoch > last,
            "each attempt must have a higher epoch: {epoch} follows {last}"
        );
        last = epoch;
        peer.wait_disconnected();
        peer.disconnect();
    }
    let (mut peer, _) = server.accept_next(&hello(SESSION, &[0, 0, 0, 1]));
    assert_exchange(&mut peer, &endpoint);
    assert_eq!(endpoint.statistics().resumes, 1);
    scene.stage.bystander.assert_unaffected();
    drop(server);
    finish(scene, peer, endpoint);
}
