//! Tests of hellos that are malformed or contain values out of range.

use std::thread;

use rdmsg::{CloseReason, Error, status::CmEventType};
use toolbox::{Lab, TIME_LIMIT};

use crate::{
    peer::{Depth, Peer},
    scene::{ROLES, Role, Scene, applies, end},
    wire::{DATA, EAGER_SIZE, Frame, HEADER_LEN, Hello, MAX_MESSAGE, VERSION, WINDOW},
};

/// The fault in a hello, as reported by the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The private data does not contain a hello of rdmsg.
    NotRdmsg,
    /// The two sides' values of a field are incompatible. Contains the code of the rejection, the
    /// name of the field, the library's value, and the peer's value.
    Mismatch(u16, &'static str, u64, u64),
}

fn faulty() -> Vec<(Vec<u8>, Fault)> {
    let good = Hello::GOOD;
    let window = WINDOW.into();
    let eager = EAGER_SIZE.into();
    vec![
        (Vec::new(), Fault::NotRdmsg),
        (vec![0; 36], Fault::NotRdmsg),
        (
            Hello {
                magic: *b"rdmR",
                ..good
            }
            .bytes(),
            Fault::NotRdmsg,
        ),
        (
            Hello {
                magic: *b"smdr",
                ..good
            }
            .bytes(),
            Fault::NotRdmsg,
        ),
        // The length field is below its minimum, or above the length of the private data.
        (Hello { len: 35, ..good }.bytes(), Fault::NotRdmsg),
        (Hello { len: 0, ..good }.bytes(), Fault::NotRdmsg),
        (Hello { len: 255, ..good }.bytes(), Fault::NotRdmsg),
        (good.bytes()[..5].to_vec(), Fault::NotRdmsg),
        // The hello is truncated. The connection manager pads the private data with zeros.
        (
            good.bytes()[..8].to_vec(),
            if Lab::get().is_iwarp() {
                Fault::NotRdmsg // iWARP does not pad private data.
            } else {
                Fault::Mismatch(2, "receive_window", window, 0)
            },
        ),
        (
            Hello { version: 0, ..good }.bytes(),
            Fault::Mismatch(1, "version", VERSION.into(), 0),
        ),
        (
            Hello { version: 1, ..good }.bytes(),
            Fault::Mismatch(1, "version", VERSION.into(), 1),
        ),
        (
            Hello { version: 2, ..good }.bytes(),
            Fault::Mismatch(1, "version", VERSION.into(), 2),
        ),
        (
            Hello {
                version: 255,
                ..good
            }
            .bytes(),
            Fault::Mismatch(1, "version", VERSION.into(), 255),
        ),
        (
            Hello { window: 0, ..good }.bytes(),
            Fault::Mismatch(2, "receive_window", window, 0),
        ),
        (
            Hello {
                eager_size: 0,
                ..good
            }
            .bytes(),
            Fault::Mismatch(3, "eager_size", eager, 0),
        ),
        (
            Hello {
                max_message: 0,
                ..good
            }
            .bytes(),
            Fault::Mismatch(4, "max_message", MAX_MESSAGE, 0),
        ),
    ]
}

#[test]
fn client_with_bad_hello_is_rejected_with_reason() {
    let scene = Scene::new();
    for (hello, fault) in faulty() {
        let peer = Peer::request(scene.stage.listener.local_addr(), &hello);
        let event = peer.event(CmEventType::REJECTED);
        let (code, ours, theirs) = match fault {
            Fault::NotRdmsg => (1, VERSION.into(), 0),
            Fault::Mismatch(code, _, ours, theirs) => (code, ours, theirs),
        };
        let mut expected = [&b"rdmR"[..], &[VERSION, 24]].concat();
        expected.extend(u16::to_be_bytes(code));
        expected.extend(u64::to_be_bytes(ours));
        expected.extend(u64::to_be_bytes(theirs));
        assert_eq!(event.private_data()[..24], expected, "{hello:?}: {fault:?}");
        scene.stage.bystander.assert_unaffected();
    }
    assert!(
        scene.stage.listener.try_accept().unwrap().is_none(),
        "the application must not receive the request"
    );
    scene.finish();
}

#[test]
fn a_server_with_a_bad_hello_is_left_with_the_reason() {
    let scene = Scene::new();
    for (hello, fault) in faulty() {
        let server = scene.server();
        let (connector, addr) = (scene.connector(), server.addr);
        let client = thread::spawn(move || connector.connect(addr).unwrap_err());
        let mut peer = server.answer(&hello);
        let error = client.join().unwrap();
        let Error::Connect { reason, .. } = error else {
            panic!("{error:?}")
        };
        match (&reason, fault) {
            (CloseReason::NotRdmsg, Fault::NotRdmsg) => {}
            (CloseReason::PeerIncompatible(mismatch), Fault::Mismatch(_, field, ours, theirs)) => {
                assert_eq!(
                    (mismatch.field, mismatch.ours, mismatch.theirs),
                    (field, ours, theirs)
                );
            }
            _ => panic!("{hello:?}: {reason:?}, not {fault:?}"),
        }
        peer.wait_disconnected();
        peer.disconnect();
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// If a side can issue no READs, or can answer none, a message above the eager size can never be
/// transferred, and blocks all later messages. The library must reject such a connection.
#[test]
fn peer_without_reads_blocks_no_messages() {
    if !applies("connect requests with the number of READs that a peer serves") {
        return;
    }
    let scene = Scene::new();
    for (depth, code, field) in [
        (
            Depth {
                responder_resources: 0,
                initiator_depth: 16,
            },
            6,
            "responder_resources",
        ),
        (
            Depth {
                responder_resources: 16,
                initiator_depth: 0,
            },
            7,
            "initiator_depth",
        ),
    ] {
        let addr = scene.stage.listener.local_addr();
        let peer = Peer::request_with(addr, &Hello::GOOD.bytes(), depth);
        let event = peer.event(CmEventType::REJECTED);
        assert_eq!(
            event.private_data()[6..8],
            u16::to_be_bytes(code),
            "{field}"
        );
        scene.stage.bystander.assert_unaffected();

        let server = scene.server();
        let (connector, addr) = (scene.connector(), server.addr);
        let client = thread::spawn(move || connector.connect(addr).unwrap_err());
        let mut peer = server.answer_with(&Hello::GOOD.bytes(), depth);
        let error = client.join().unwrap();
        assert!(
            matches!(
                &error,
                Error::Connect {
                    reason: CloseReason::PeerIncompatible(mismatch),
                    ..
                } if mismatch.field == field
            ),
            "{error:?}"
        );
        peer.wait_disconnected();
        peer.disconnect();
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

#[test]
fn a_rejection_of_any_bytes_is_a_rejection() {
    let scene = Scene::new();
    let unknown_code = [&b"rdmR\x01\x18\x00\x63"[..], &[0; 16]].concat();
    let cut_off = b"rdmR\x01\x08\x00\x01".to_vec();
    let too_long = [&b"rdmR\x01\xff\x00\x00"[..], &[0; 16]].concat();
    for answer in [Vec::new(), vec![0xff; 148], unknown_code, cut_off, too_long] {
        let server = scene.server();
        let (connector, addr) = (scene.connector(), server.addr);
        let client = thread::spawn(move || connector.connect(addr).unwrap_err());
        server.request().reject(&answer).unwrap();
        let error = client.join().unwrap();
        println!("{answer:?}: {error}");
        let Error::Connect { reason, .. } = &error else {
            panic!("{answer:?}: {error:?}")
        };
        match reason {
            CloseReason::RejectedWithoutCause => assert!(answer.is_empty()),
            CloseReason::Rejected { data, .. } => {
                assert!(data.is_empty() && !answer.is_empty());
            }
            _ => panic!("{answer:?}: {error:?}"),
        }
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// A hello can announce any limits: the library allocates no memory in advance for a limit that a
/// peer announces.
#[test]
fn unbounded_limits_of_a_peer_allocate_nothing() {
    let scene = Scene::new();
    let hello = Hello {
        // Set all feature bits, including unknown bits, except three: byte stream (1), resume (32)
        // and long request (256).
        features: !(1 | 32 | 256),
        window: u16::MAX,
        reserved: u16::MAX,
        eager_size: u32::MAX,
        max_message: u64::MAX,
        keepalive_ms: 1,
        engine: u64::MAX,
        ..Hello::GOOD
    };
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect_with(role, &hello);
        let negotiated = endpoint.info().negotiated.unwrap();
        assert_eq!(negotiated.send_window, u16::MAX);
        assert_eq!(
            negotiated.keepalive_interval, None,
            "this side sets no interval, so no keepalive must run"
        );
        assert_eq!(
            negotiated.send_eager, EAGER_SIZE,
            "this side's smaller eager size must apply"
        );
        let message = vec![5; EAGER_SIZE as usize];
        endpoint.send(&message).unwrap();
        let frame = peer.receive();
        assert_eq!(frame[0], DATA);
        assert_eq!(frame[HEADER_LEN..], message);
        // A grant is the total number of messages that the library may send on the connection: here
        // the window of the hello plus the one message that the peer has received.
        let grant = u32::from(u16::MAX) + 1;
        peer.send(
            &Frame {
                grant,
                ..Frame::data(b"echo")
            }
            .bytes(),
        );
        assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *b"echo");
        peer.send(
            &Frame {
                grant: grant + 1,
                ..Frame::data(b"forged")
            }
            .bytes(),
        );
        peer.wait_disconnected();
        peer.disconnect();
        let (reason, _) = end(&endpoint);
        assert!(
            matches!(&reason, CloseReason::ProtocolViolation(violation) if violation.field() == "grant"),
            "{reason:?}"
        );
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// If a peer withdraws its request immediately, the listener removes this request from its pending
/// requests.
#[test]
fn withdrawn_requests_leak_nothing() {
    if !applies("connect requests that can be withdrawn") {
        return;
    }
    let scene = Scene::new();
    for _ in 0..20 {
        let peer = Peer::request(scene.stage.listener.local_addr(), &Hello::GOOD.bytes());
        drop(peer);
        scene.stage.bystander.assert_unaffected();
    }
    // The listener still accepts a peer that follows the protocol.
    let (peer, endpoint) = scene.connect(Role::Client);
    peer.disconnect();
    assert_eq!(end(&endpoint).0, CloseReason::PeerDisconnected);
    drop(endpoint);
    scene.finish();
}
