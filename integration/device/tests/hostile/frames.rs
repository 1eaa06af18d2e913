//! Tests of forbidden frames. Each forbidden frame is the first violation on a new connection.

use rdmsg::{
    CloseReason, Completion, RemoteAccess,
    error::DeviceFault,
    status::WcStatus,
    verbs::{RemoteAddr, SendWr},
};
use toolbox::TIME_LIMIT;

use crate::{
    scene::{ROLES, Scene, applies, end, violated_field},
    wire::{
        ABORT, CLOSE, CLOSE_ACK, CONTROL_MESSAGE, CONTROL_RECEIVES, DATA, EAGER_SIZE, Frame, GRANT,
        HEADER_LEN, LEAVE, PERMIT, PING, PONG, WINDOW,
    },
};

/// A case that sends `frames`. Only the last frame is forbidden. The library must deliver
/// `messages` messages, report a violation in `field`, and disconnect.
struct Case {
    what: &'static str,
    frames: Vec<Vec<u8>>,
    field: &'static str,
    messages: usize,
}

fn case(what: &'static str, field: &'static str, bytes: Vec<u8>) -> Case {
    Case {
        what,
        frames: vec![bytes],
        field,
        messages: 0,
    }
}

fn play(cases: impl Fn() -> Vec<Case>) {
    let scene = Scene::new();
    for role in ROLES {
        for Case {
            what,
            frames,
            field,
            messages,
        } in cases()
        {
            let (mut peer, endpoint) = scene.connect(role);
            for frame in &frames {
                peer.send(frame);
            }
            peer.wait_disconnected();
            peer.disconnect();
            let (reason, delivered) = end(&endpoint);
            match reason {
                CloseReason::ProtocolViolation(violation) => {
                    assert_eq!(violation.field(), field, "{what}, {role:?}: {violation}")
                }
                other => panic!("{what}, {role:?}: {other:?}"),
            }
            assert_eq!(delivered.len(), messages, "{what}, {role:?}");
            scene.stage.bystander.assert_unaffected();
        }
    }
    scene.finish();
}

#[test]
fn a_malformed_header_is_named_by_its_field() {
    play(|| {
        let good = Frame::data(b"x");
        let mut cases = vec![
            case("nothing at all", "frame length", Vec::new()),
            case("one byte", "frame length", vec![DATA]),
            case("half a header", "frame length", good.bytes()[..15].to_vec()),
            case(
                "a flag",
                "flags",
                Frame {
                    flags: 1,
                    ..good.clone()
                }
                .bytes(),
            ),
            case(
                "all flags",
                "flags",
                Frame {
                    flags: 0xff,
                    ..good.clone()
                }
                .bytes(),
            ),
            case(
                "a repeated frame number",
                "sequence",
                Frame {
                    ahead: u16::MAX,
                    ..good.clone()
                }
                .bytes(),
            ),
            case(
                "a skipped frame number",
                "sequence",
                Frame {
                    ahead: 1,
                    ..good.clone()
                }
                .bytes(),
            ),
            case(
                "too short a length",
                "len",
                Frame {
                    len: Some(0),
                    ..good.clone()
                }
                .bytes(),
            ),
            case(
                "too long a length",
                "len",
                Frame {
                    len: Some(2),
                    ..good.clone()
                }
                .bytes(),
            ),
            case(
                "an absurd length",
                "len",
                Frame {
                    len: Some(u32::MAX),
                    ..good.clone()
                }
                .bytes(),
            ),
            case(
                "a length without a payload",
                "len",
                Frame {
                    len: Some(1),
                    ..Frame::control(DATA)
                }
                .bytes(),
            ),
        ];
        for kind in [0, 13, 15, 99, 255] {
            cases.push(case(
                "an unknown kind",
                "kind",
                Frame {
                    kind,
                    ..good.clone()
                }
                .bytes(),
            ));
        }
        for kind in [GRANT, PING, PONG, CLOSE, ABORT, CLOSE_ACK, PERMIT, LEAVE] {
            let frame = Frame {
                kind,
                ..good.clone()
            };
            cases.push(case("a payload in a control frame", "len", frame.bytes()));
        }
        for kind in [DATA, GRANT, PING, PONG, CLOSE, CLOSE_ACK, LEAVE] {
            // For these kinds, the argument is the number of large messages that the peer has read.
            // The correct number is 0 here.
            let frame = Frame {
                arg: 1,
                ..Frame::control(kind)
            };
            cases.push(case("an argument", "arg", frame.bytes()));
        }
        for (kind, arg, payload, field) in [
            (CONTROL_MESSAGE, 1, &[0][..], "control number"),
            (CONTROL_MESSAGE, 0, &[0; 257], "len"),
            (PERMIT, 5, &[], "permit"),
        ] {
            let frame = Frame {
                arg,
                payload,
                ..Frame::control(kind)
            };
            cases.push(case(
                "a bad frame of control messages",
                field,
                frame.bytes(),
            ));
        }
        cases
    });
}

#[test]
fn frame_longer_than_hello_allows_names_length() {
    let longest = vec![7; EAGER_SIZE as usize + 8];
    play(|| {
        let frame = |len: u32| Frame::data(&longest[..len as usize]).bytes();
        // With this eager size, the receive buffer is 8 bytes longer than the longest valid frame.
        // The device accepts up to 8 excess bytes, so the library itself must reject such a frame.
        let mut cases = vec![
            case("one byte too long", "len", frame(EAGER_SIZE + 1)),
            case("as long as the buffer", "len", frame(EAGER_SIZE + 8)),
        ];
        cases.push(Case {
            what: "one byte too long, after a valid frame",
            frames: vec![frame(EAGER_SIZE), frame(EAGER_SIZE + 1)],
            field: "len",
            messages: 1,
        });
        cases
    });
}

#[test]
fn device_stops_frame_longer_than_buffer() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        peer.send(&Frame::data(&[7; EAGER_SIZE as usize + 9]).bytes());
        peer.wait_disconnected();
        peer.disconnect();
        let (reason, messages) = end(&endpoint);
        // Hardware reports LOC_LEN_ERR, and software RoCE reports LOC_QP_OP_ERR.
        assert!(
            matches!(
                reason,
                CloseReason::WorkRequest {
                    status: WcStatus::LOC_LEN_ERR | WcStatus::LOC_QP_OP_ERR,
                    ..
                }
            ),
            "{reason:?}"
        );
        assert!(messages.is_empty());
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

#[test]
fn a_forged_grant_is_named() {
    let window = u32::from(WINDOW);
    play(|| {
        let mut cases = Vec::new();
        for kind in [DATA, GRANT, PING, CLOSE, ABORT, CLOSE_ACK] {
            for grant in [0, window - 1, window + 1, 1 << 31, u32::MAX] {
                let frame = Frame {
                    grant,
                    ..Frame::control(kind)
                };
                cases.push(case("a grant", "grant", frame.bytes()));
            }
        }
        cases.push(Case {
            what: "a grant for a message that was not sent, after a repeated grant",
            frames: vec![
                Frame::control(GRANT).bytes(),
                Frame {
                    grant: window + 1,
                    ..Frame::control(GRANT)
                }
                .bytes(),
            ],
            field: "grant",
            messages: 0,
        });
        cases
    });
}

#[test]
fn decreasing_grant_is_violation_after_valid_one() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        endpoint.send(b"one").unwrap();
        assert_eq!(peer.receive()[HEADER_LEN..], *b"one");
        let grant = u32::from(WINDOW) + 1;
        peer.send(
            &Frame {
                grant,
                ..Frame::control(GRANT)
            }
            .bytes(),
        );
        peer.send(&Frame::control(GRANT).bytes());
        peer.wait_disconnected();
        peer.disconnect();
        assert_eq!(violated_field(&endpoint), "grant");
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

#[test]
fn data_without_credit_is_violation_after_delivery() {
    play(|| {
        // The peer sends no control frames, so the receives for them are still posted. The excess
        // frame uses one of these receives.
        let excess = usize::from(WINDOW) + 1;
        assert!(excess <= usize::from(WINDOW) + CONTROL_RECEIVES);
        vec![Case {
            what: "one message more than the window",
            frames: vec![Frame::data(b"message").bytes(); excess],
            field: "kind",
            messages: WINDOW.into(),
        }]
    });
}

#[test]
fn an_answer_to_nothing_is_named() {
    play(|| {
        vec![
            case("a pong", "kind", Frame::control(PONG).bytes()),
            case(
                "an acknowledgement",
                "kind",
                Frame::control(CLOSE_ACK).bytes(),
            ),
            Case {
                what: "a pong after the peer's own ping",
                frames: vec![Frame::control(PING).bytes(), Frame::control(PONG).bytes()],
                field: "kind",
                messages: 0,
            },
        ]
    });
}

#[test]
fn messages_behind_a_bad_frame_are_not_delivered() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        peer.send(&Frame::data(b"before").bytes());
        peer.send(&Frame::control(99).bytes());
        peer.send(&Frame::data(b"behind").bytes());
        peer.wait_disconnected();
        peer.disconnect();
        let (reason, messages) = end(&endpoint);
        assert!(
            matches!(&reason, CloseReason::ProtocolViolation(violation) if violation.field() == "kind"),
            "{reason:?}"
        );
        assert_eq!(
            messages.len(),
            1,
            "messages after a violation must not be delivered"
        );
        assert_eq!(*messages[0], *b"before");
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// The library reports the peer's Close as the reason for the end, although a forbidden frame
/// follows. The library must disconnect immediately. If the library waited until `close_timeout`
/// expires, this test would exceed its time limit.
#[test]
fn forbidden_frame_after_close_ends_connection() {
    let scene = Scene::new();
    let forbidden = [
        Frame::control(CLOSE).bytes(),
        Frame::control(CLOSE_ACK).bytes(),
        Frame::data(b"late").bytes(),
        Frame::control(99).bytes(),
        Frame {
            grant: 0,
            ..Frame::control(GRANT)
        }
        .bytes(),
        vec![CLOSE],
    ];
    for role in ROLES {
        for frame in &forbidden {
            let (mut peer, endpoint) = scene.connect(role);
            peer.send(&Frame::data(b"in time").bytes());
            peer.send(&Frame::control(CLOSE).bytes());
            // The protocol permits these frames after a close.
            peer.send(&Frame::control(GRANT).bytes());
            peer.send(&Frame::control(PING).bytes());
            peer.send(&Frame::control(CLOSE_ACK).bytes());
            peer.send(frame);
            peer.wait_disconnected();
            peer.disconnect();
            let (reason, messages) = end(&endpoint);
            assert_eq!(reason, CloseReason::PeerClosed, "{frame:?}");
            assert_eq!(messages.len(), 1, "{frame:?}");
            scene.stage.bystander.assert_unaffected();
        }
    }
    scene.finish();
}

#[test]
fn nothing_counts_behind_an_abort() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        peer.send(
            &Frame {
                arg: 0xdead_beef,
                ..Frame::control(ABORT)
            }
            .bytes(),
        );
        peer.send(
            &Frame {
                arg: 1,
                ..Frame::control(ABORT)
            }
            .bytes(),
        );
        peer.send(&Frame::data(b"late").bytes());
        peer.send(&[9; 5]);
        peer.wait_disconnected();
        peer.disconnect();
        let (reason, messages) = end(&endpoint);
        assert_eq!(reason, CloseReason::PeerAborted(0xdead_beef));
        assert!(messages.is_empty());
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// The library ignores immediate data of a SEND. It reports a WRITE with immediate data to the
/// application, and counts the WRITE in the window like a message.
#[test]
fn immediate_writes_need_credit_like_sends() {
    if !applies("writes with immediate data") {
        return;
    }
    let scene = Scene::new();
    let nowhere = RemoteAddr { addr: 0, rkey: 0 };
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        // Without writable memory, immediate data would itself be a violation.
        let _writable = endpoint
            .one_sided()
            .region(64, RemoteAccess::WRITE)
            .unwrap();
        peer.send_as(&Frame::data(b"plain").bytes(), |id, sge| {
            SendWr::send_with_imm(id, sge, 0xffff_ffff)
        });
        for word in 0..u32::from(WINDOW) {
            // A WRITE of zero bytes needs no valid key.
            peer.send_as(&[], |id, sge| {
                SendWr::write_with_imm(id, sge, nowhere, word)
            });
        }
        peer.wait_disconnected();
        peer.disconnect();
        let mut words = Vec::new();
        let violation = loop {
            match endpoint.next_completion_timeout(TIME_LIMIT).unwrap() {
                Completion::Received(message) => assert_eq!(*message, *b"plain"),
                Completion::Immediate(immediate) => {
                    assert_eq!(immediate.len(), 0);
                    words.push(immediate.imm_data());
                }
                Completion::Disconnected(CloseReason::ProtocolViolation(violation)) => {
                    break violation;
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(violation.field(), "kind");
        assert_eq!(
            words,
            [0, 1, 2],
            "a WRITE without credit must not be reported"
        );
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// A WRITE with immediate data is a violation if the application has no memory that the peer can
/// write. Without this rule, a peer could fill the window of an application that does not expect
/// immediate data.
#[test]
fn immediates_without_memory_do_not_fill_window() {
    if !applies("writes with immediate data") {
        return;
    }
    let scene = Scene::new();
    let nowhere = RemoteAddr { addr: 0, rkey: 0 };
    for role in ROLES {
        for access in [None, Some(RemoteAccess::READ)] {
            let (mut peer, endpoint) = scene.connect(role);
            let _readable = access.map(|access| endpoint.one_sided().region(64, access).unwrap());
            peer.send_as(&[], |id, sge| SendWr::write_with_imm(id, sge, nowhere, 7));
            peer.wait_disconnected();
            peer.disconnect();
            assert_eq!(violated_field(&endpoint), "immediate");
            scene.stage.bystander.assert_unaffected();
        }
    }
    scene.finish();
}

/// The library registers its buffers without remote access. If a peer tries to read or write them,
/// this attempt ends only the peer's own connection.
#[test]
fn nothing_of_the_library_can_be_read_or_written() {
    let scene = Scene::new();
    for role in ROLES {
        for writes in [false, true] {
            let (mut peer, endpoint) = scene.connect(role);
            // The peer runs in this process. The index in this key is one below the index in the
            // key of the peer's own region. The key therefore probably belongs to another region of
            // this process.
            let target = RemoteAddr {
                addr: peer.region().addr(),
                rkey: peer.region().lkey().wrapping_sub(1 << 8),
            };
            peer.send_as(&[7; 64], |id, sge| match writes {
                true => SendWr::write(id, sge, target),
                false => SendWr::read(id, sge, target),
            });
            peer.wait_disconnected();
            peer.disconnect();
            let (reason, messages) = end(&endpoint);
            // Only some devices report on this side that the access was rejected. On every device,
            // the peer's queue pair enters the error state.
            assert!(
                matches!(
                    reason,
                    CloseReason::PeerDisconnected
                        | CloseReason::WorkRequest { .. }
                        | CloseReason::DeviceFault(DeviceFault::Request | DeviceFault::Access)
                ),
                "{role:?}, writes: {writes}: {reason:?}"
            );
            assert!(messages.is_empty());
            scene.stage.bystander.assert_unaffected();
        }
    }
    scene.finish();
}
