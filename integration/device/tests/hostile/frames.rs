//! Frames that the protocol forbids, each on a fresh connection that was well until then.

use rdmsg::{
    CloseReason, Completion, RemoteAccess,
    error::DeviceFault,
    status::WcStatus,
    verbs::{RemoteAddr, SendWr},
};
use toolbox::PATIENCE;

use crate::{
    scene::{ROLES, Scene, applies, end, violated_field},
    wire::{
        ABORT, CLOSE, CLOSE_ACK, CONTROL_RECEIVES, DATA, EAGER_SIZE, Frame, GRANT, HEADER_LEN,
        PING, PONG, WINDOW,
    },
};

/// Sends the last of `frames` behind the others, which are allowed: the library names `field`,
/// delivered `messages`, and goes.
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
            scene.stage.bystander.assert_well();
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
                "a frame that came before",
                "sequence",
                Frame {
                    ahead: u16::MAX,
                    ..good.clone()
                }
                .bytes(),
            ),
            case(
                "a frame behind a lost one",
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
        for kind in [0, 10, 15, 99, 255] {
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
        for kind in [GRANT, PING, PONG, CLOSE, ABORT, CLOSE_ACK] {
            let frame = Frame {
                kind,
                ..good.clone()
            };
            cases.push(case("a payload in a control frame", "len", frame.bytes()));
        }
        for kind in [DATA, GRANT, PING, PONG, CLOSE, CLOSE_ACK] {
            // So many large messages of the library's were taken, of none.
            let frame = Frame {
                arg: 1,
                ..Frame::control(kind)
            };
            cases.push(case("an argument", "arg", frame.bytes()));
        }
        cases
    });
}

#[test]
fn a_frame_that_is_longer_than_the_hello_allows_is_named_by_its_length() {
    let longest = vec![7; EAGER_SIZE as usize + 8];
    play(|| {
        let frame = |len: u32| Frame::data(&longest[..len as usize]).bytes();
        // The longest that fits the buffer, which is rounded up, and the first that does not keep
        // to the hello.
        let mut cases = vec![
            case("longer by one", "len", frame(EAGER_SIZE + 1)),
            case("as long as the buffer", "len", frame(EAGER_SIZE + 8)),
        ];
        cases.push(Case {
            what: "longer by one behind one that is allowed",
            frames: vec![frame(EAGER_SIZE), frame(EAGER_SIZE + 1)],
            field: "len",
            messages: 1,
        });
        cases
    });
}

#[test]
fn a_frame_that_is_longer_than_the_buffer_is_stopped_by_the_device() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        peer.send(&Frame::data(&[7; EAGER_SIZE as usize + 9]).bytes());
        peer.wait_disconnected();
        peer.disconnect();
        let (reason, messages) = end(&endpoint);
        // Hardware says the former, soft-RoCE the latter.
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
        scene.stage.bystander.assert_well();
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
            what: "a grant for a message that was not sent, behind one that repeats the first",
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
fn a_grant_that_goes_back_is_named_after_one_that_was_earned() {
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
        scene.stage.bystander.assert_well();
    }
    scene.finish();
}

#[test]
fn data_without_credit_is_named_and_what_had_credit_is_delivered() {
    play(|| {
        // It finds a receive: those for control frames are all free.
        let excess = usize::from(WINDOW) + 1;
        assert!(excess <= usize::from(WINDOW) + CONTROL_RECEIVES);
        vec![Case {
            what: "one more than the window",
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
                what: "a pong behind a ping of its own",
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
        assert_eq!(messages.len(), 1, "a stream with a hole is none");
        assert_eq!(*messages[0], *b"before");
        scene.stage.bystander.assert_well();
    }
    scene.finish();
}

/// The first cause stays. The connection is taken down at once all the same: the bound on closing
/// is longer than this test may take.
#[test]
fn what_may_not_follow_a_close_takes_the_connection_down() {
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
            // These are allowed.
            peer.send(&Frame::control(GRANT).bytes());
            peer.send(&Frame::control(PING).bytes());
            peer.send(&Frame::control(CLOSE_ACK).bytes());
            peer.send(frame);
            peer.wait_disconnected();
            peer.disconnect();
            let (reason, messages) = end(&endpoint);
            assert_eq!(reason, CloseReason::PeerClosed, "{frame:?}");
            assert_eq!(messages.len(), 1, "{frame:?}");
            scene.stage.bystander.assert_well();
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
        scene.stage.bystander.assert_well();
    }
    scene.finish();
}

/// Immediate data means nothing with a message. A WRITE that has some is told of, and takes a place
/// of the window as a message does.
#[test]
fn other_work_requests_than_a_send_need_credit_as_well() {
    if !applies("writes with immediate data") {
        return;
    }
    let scene = Scene::new();
    let nowhere = RemoteAddr { addr: 0, rkey: 0 };
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        // Without it an immediate is a violation by itself.
        let _writable = endpoint
            .one_sided()
            .region(64, RemoteAccess::WRITE)
            .unwrap();
        peer.send_as(&Frame::data(b"plain").bytes(), |id, sge| {
            SendWr::send_with_imm(id, sge, 0xffff_ffff)
        });
        for word in 0..u32::from(WINDOW) {
            // Nothing is written, so no right to write is needed.
            peer.send_as(&[], |id, sge| {
                SendWr::write_with_imm(id, sge, nowhere, word)
            });
        }
        peer.wait_disconnected();
        peer.disconnect();
        let mut words = Vec::new();
        let violation = loop {
            match endpoint.next_completion_timeout(PATIENCE).unwrap() {
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
        assert_eq!(words, [0, 1, 2], "the last one had no credit");
        scene.stage.bystander.assert_well();
    }
    scene.finish();
}

/// An application that only receives would have its window filled with what it did not ask for.
#[test]
fn immediates_for_which_there_is_no_memory_do_not_fill_the_window() {
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
            scene.stage.bystander.assert_well();
        }
    }
    scene.finish();
}

/// The library registers its buffers without rights for the peer: whoever reaches for them ends its
/// own connection.
#[test]
fn nothing_of_the_library_can_be_read_or_written() {
    let scene = Scene::new();
    for role in ROLES {
        for writes in [false, true] {
            let (mut peer, endpoint) = scene.connect(role);
            // Keys of neighbours: the peer's own, which others of this process follow and precede.
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
            // Whether the device tells of it here as well, the peer's is gone.
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
            scene.stage.bystander.assert_well();
        }
    }
    scene.finish();
}
