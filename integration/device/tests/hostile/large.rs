//! Tests of peers that forge frames for large messages: wrong descriptors, and wrong counts of the
//! messages that the peer has read.

use rdmsg::{
    CloseReason, Completion, Endpoint, Outgoing, RemoteAccess, RemoteRegion,
    status::WcStatus,
    verbs::{MemoryRegion, RemoteAddr},
};
use toolbox::TIME_LIMIT;

use crate::{
    peer::Peer,
    scene::{ROLES, Role, Scene, applies, config, end, violated_field},
    wire::{CLOSE, Descriptor, Frame, GRANT, MAX_MESSAGE, RENDEZVOUS, WINDOW},
};

/// Returns the correct descriptor of a large message whose bytes are in `exposed`.
pub(crate) fn descriptor(exposed: &MemoryRegion) -> Descriptor {
    Descriptor {
        addr: exposed.addr(),
        len: exposed.len() as u64,
        rkey: exposed.rkey(),
        reserved: 0,
    }
}

pub(crate) fn rendezvous(payload: &[u8]) -> Vec<u8> {
    Frame {
        payload,
        ..Frame::control(RENDEZVOUS)
    }
    .bytes()
}

/// A peer that has announced a valid large message, and has then sent a forged frame.
struct Forger {
    what: &'static str,
    role: Role,
    peer: Peer,
    endpoint: Endpoint,
    /// The memory of the messages. Dropping it would deregister the memory that the library reads.
    _exposed: MemoryRegion,
}

impl Forger {
    /// Announces a valid message. Then passes the descriptor of this message to `forge`, and sends
    /// the frame that `forge` returns.
    fn new(
        scene: &Scene,
        what: &'static str,
        role: Role,
        forge: impl Fn(Descriptor) -> Vec<u8>,
    ) -> Self {
        let (mut peer, endpoint) = scene.connect(role);
        let exposed = peer.register(5000);
        exposed.copy_in(0, &[7; 5000]);
        peer.send(&rendezvous(&descriptor(&exposed).bytes()));
        // Wait until the library has confirmed that it has read the first message.
        receive_until(&mut peer, |_, taken| taken == 1);
        peer.send(&forge(descriptor(&exposed)));
        Self {
            what,
            role,
            peer,
            endpoint,
            _exposed: exposed,
        }
    }

    /// Checks that the library reports a violation in `field` and delivers only the first message.
    fn assert_violation(mut self, field: &'static str) {
        let (what, role) = (self.what, self.role);
        self.peer.wait_disconnected();
        self.peer.disconnect();
        let (reason, messages) = end(&self.endpoint);
        match reason {
            CloseReason::ProtocolViolation(violation) => {
                assert_eq!(violation.field(), field, "{what}, {role:?}: {violation}");
            }
            other => panic!("{what}, {role:?}: {other:?}"),
        }
        assert_eq!(messages.len(), 1, "{what}, {role:?}");
        assert_eq!(*messages[0], [7; 5000], "{what}, {role:?}");
    }
}

/// Runs a [`Forger`] in both roles, and checks that the library reports a violation in `field`.
fn forged(
    scene: &Scene,
    what: &'static str,
    field: &'static str,
    forge: impl Fn(Descriptor) -> Vec<u8>,
) {
    for role in ROLES {
        Forger::new(scene, what, role, &forge).assert_violation(field);
        scene.stage.bystander.assert_unaffected();
    }
}

/// Receives frames until `enough` returns true. Calls `enough` with two values of each frame: the
/// grant, and the number of large messages that the library has read.
fn receive_until(peer: &mut Peer, enough: impl Fn(u32, u32) -> bool) {
    loop {
        let frame = peer.receive();
        let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        if enough(word(4), word(12)) {
            return;
        }
    }
}

#[test]
fn a_malformed_descriptor_is_named_by_its_field() {
    let scene = Scene::new();
    let cut = |descriptor: Descriptor, len: usize| {
        let mut payload = descriptor.bytes();
        payload.resize(len, 0);
        rendezvous(&payload)
    };
    forged(&scene, "no descriptor", "len", |good| cut(good, 0));
    forged(&scene, "cut short", "len", |good| cut(good, 23));
    forged(&scene, "too long", "len", |good| cut(good, 25));
    forged(&scene, "reserved", "descriptor reserved", |good| {
        rendezvous(
            &Descriptor {
                reserved: 1 << 31,
                ..good
            }
            .bytes(),
        )
    });
    for len in [0, MAX_MESSAGE + 1, 1 << 40, u64::MAX] {
        forged(&scene, "length", "descriptor len", |good| {
            rendezvous(&Descriptor { len, ..good }.bytes())
        });
    }
    forged(
        &scene,
        "an end beyond all addresses",
        "descriptor len",
        |good| {
            rendezvous(
                &Descriptor {
                    addr: u64::MAX - 10,
                    ..good
                }
                .bytes(),
            )
        },
    );
    scene.finish();
}

/// These descriptors are wrong, but only the peer's device can detect this. The peer's device must
/// reject the READ.
#[test]
fn memory_that_cannot_be_read_is_named_by_its_key() {
    if !applies("reads whose refusal names the request") {
        return;
    }
    let scene = Scene::new();
    type Lie = fn(Descriptor) -> Descriptor;
    let lies: [(&str, Lie); 5] = [
        ("another key", |good| Descriptor {
            rkey: good.rkey ^ 1,
            ..good
        }),
        ("no key", |good| Descriptor { rkey: 0, ..good }),
        ("one byte too many", |good| Descriptor {
            len: good.len + 1,
            ..good
        }),
        ("memory before the exposed memory", |good| Descriptor {
            addr: good.addr - 1,
            ..good
        }),
        ("memory that is nowhere", |good| Descriptor {
            addr: 0,
            ..good
        }),
    ];
    // Run all cases concurrently, because each case takes long: the library reports a violation
    // only after it has waited for the peer's disconnect.
    let mut forgers = Vec::new();
    for (what, lie) in lies {
        for role in ROLES {
            let forge = |good| rendezvous(&lie(good).bytes());
            forgers.push(Forger::new(&scene, what, role, forge));
        }
    }
    for forger in forgers {
        forger.assert_violation("rkey");
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// The application keeps the first message, which uses up the memory for large messages. The
/// library therefore reads none of the later messages.
#[test]
fn more_large_messages_than_agreed_are_named() {
    const TOGETHER: u32 = 4;
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        let exposed = peer.register(MAX_MESSAGE as usize);
        let frame = rendezvous(&descriptor(&exposed).bytes());
        peer.send(&frame);
        receive_until(&mut peer, |_, taken| taken == 1);
        peer.send(&frame);
        peer.send(&frame);
        // Wait until the peer's credit permits six messages: one that the library has read, four
        // unread large messages, and one more. The protocol permits only four unread large
        // messages.
        receive_until(&mut peer, |grant, _| grant >= TOGETHER + 2);
        for _ in 2..=TOGETHER {
            peer.send(&frame);
        }
        peer.wait_disconnected();
        peer.disconnect();
        let (reason, messages) = end(&endpoint);
        match reason {
            CloseReason::ProtocolViolation(violation) => assert_eq!(
                (violation.field(), violation.value()),
                ("kind", RENDEZVOUS.into()),
                "{violation}"
            ),
            other => panic!("{other:?}"),
        }
        assert_eq!(messages.len(), 1);
        scene.stage.bystander.assert_unaffected();
        // Messages remain readable after the connection has ended.
        assert!(*messages[0] == vec![0; MAX_MESSAGE as usize]);
    }
    scene.finish();
}

/// Sends a large message to the peer. Returns the descriptor that the peer receives.
fn offered(peer: &mut Peer, endpoint: &Endpoint) -> Descriptor {
    endpoint.send(&[3; 5000]).unwrap();
    let offer = Descriptor::of(&peer.receive());
    assert_eq!((offer.len, offer.reserved), (5000, 0));
    offer
}

#[test]
fn a_forged_count_of_messages_taken_is_named() {
    let scene = Scene::new();
    for role in ROLES {
        // These counts decrease, or exceed the number of messages sent.
        for claims in [
            &[3][..],
            &[u32::MAX],
            &[1 << 31],
            &[1, 0],
            &[2, 1],
            &[1, 3],
            &[2, 3],
        ] {
            let (mut peer, endpoint) = scene.connect(role);
            offered(&mut peer, &endpoint);
            offered(&mut peer, &endpoint);
            for claim in claims {
                peer.send(&taken(*claim));
            }
            peer.wait_disconnected();
            peer.disconnect();
            assert_eq!(violated_field(&endpoint), "arg", "{claims:?}");
            scene.stage.bystander.assert_unaffected();
        }
    }
    scene.finish();
}

/// When a peer confirms a message, the library may reuse the message's memory. A peer that confirms
/// a message before reading it harms only itself: it loses this message.
#[test]
fn false_claim_of_reading_harms_only_the_peer() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        for count in 1..=u32::from(WINDOW) {
            offered(&mut peer, &endpoint);
            peer.send(
                &Frame {
                    arg: count,
                    ..Frame::control(GRANT)
                }
                .bytes(),
            );
        }
        peer.send(
            &Frame {
                arg: WINDOW.into(),
                ..Frame::control(CLOSE)
            }
            .bytes(),
        );
        while peer.receive()[0] != CLOSE {}
        peer.disconnect();
        assert_eq!(end(&endpoint).0, CloseReason::PeerClosed);
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

#[test]
fn peer_death_during_read_ends_the_connection() {
    const LONG: usize = 16 << 20;
    let mut config = config();
    config.max_message = LONG as u64;
    let scene = Scene::with(config);
    for role in ROLES {
        for orderly in [true, false] {
            let (mut peer, endpoint) = scene.connect(role);
            let exposed = peer.register(LONG);
            peer.send(&rendezvous(&descriptor(&exposed).bytes()));
            peer.send(&Frame::data(b"behind").bytes());
            assert!(peer.flush());
            if orderly {
                peer.disconnect();
            } else {
                drop(peer);
            }
            drop(exposed);
            let (reason, messages) = end(&endpoint);
            assert!(
                matches!(
                    reason,
                    CloseReason::PeerDisconnected
                        | CloseReason::WorkRequest {
                            status: WcStatus::RETRY_EXC_ERR,
                            ..
                        }
                ),
                "{role:?}, orderly: {orderly}: {reason:?}"
            );
            // The connection ends before all READs of the large message have completed. The library
            // therefore delivers neither this message nor the message after it.
            assert!(messages.is_empty(), "{role:?}, orderly: {orderly}");
            scene.stage.bystander.assert_unaffected();
        }
    }
    scene.finish();
}

/// The peer deregisters the memory of a message and then announces this message. The peer's queue
/// pair stays connected.
#[test]
fn memory_revoked_during_read_is_named_by_key() {
    if !applies("reads whose refusal names the request") {
        return;
    }
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        let exposed = peer.register(MAX_MESSAGE as usize);
        let gone = descriptor(&exposed);
        drop(exposed);
        peer.send(&rendezvous(&gone.bytes()));
        peer.wait_disconnected();
        peer.disconnect();
        assert_eq!(violated_field(&endpoint), "rkey");
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// Before the first READ, the library reserves address space for the whole message. When this READ
/// fails, the library must release the address space.
#[test]
fn unreadable_long_message_leaks_nothing() {
    if !applies("reads whose refusal names the request") {
        return;
    }
    const LONG: u64 = 64 << 20;
    let mut config = config();
    config.max_message = LONG;
    let scene = Scene::with(config);
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        let nowhere = Descriptor {
            addr: 1 << 40,
            len: LONG,
            rkey: peer.region().rkey(),
            reserved: 0,
        };
        peer.send(&rendezvous(&nowhere.bytes()));
        peer.wait_disconnected();
        peer.disconnect();
        assert_eq!(violated_field(&endpoint), "rkey");
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// The peer never reads the library's large messages. The close must fail after `close_timeout`,
/// and must report the messages as undelivered.
#[test]
fn a_peer_that_reads_nothing_is_given_up() {
    let mut config = config();
    config.close_timeout = std::time::Duration::from_millis(200);
    let scene = Scene::with(config);
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        offered(&mut peer, &endpoint);
        let error = endpoint.close().unwrap_err();
        assert!(matches!(error, rdmsg::Error::Undelivered(_)), "{error:?}");
        peer.wait_disconnected();
        peer.disconnect();
        assert_eq!(end(&endpoint).0, CloseReason::LocallyClosed);
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// Returns a Grant frame that confirms that the peer has read `count` large messages in total.
fn taken(count: u32) -> Vec<u8> {
    Frame {
        arg: count,
        ..Frame::control(GRANT)
    }
    .bytes()
}

/// The peer's device acknowledges a small message even if the peer has not read the large message
/// before it. A peer's library delivers the small message only after the large message. The library
/// must therefore not report the small message as sent before the peer has confirmed the large
/// message.
#[test]
fn unread_large_message_delays_sent_of_later_ones() {
    let scene = Scene::new();
    for role in ROLES {
        for read in [true, false] {
            let (mut peer, endpoint) = scene.connect(role);
            let next = || endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
            endpoint
                .send(Outgoing::from(&[3; 5000]).with_id(1))
                .unwrap();
            endpoint.send(Outgoing::from(b"behind").with_id(2)).unwrap();
            endpoint
                .send(Outgoing::from(&[4; 5000]).with_id(3))
                .unwrap();
            endpoint
                .send(Outgoing::from(b"behind both").with_id(4))
                .unwrap();
            // The device processes work requests in order. When this READ completes, the peer's
            // device has acknowledged all earlier sends.
            let exposed = peer.register(8);
            let ours = endpoint.one_sided().region(8, RemoteAccess::NONE).unwrap();
            let mut remote = [0; RemoteRegion::LEN];
            remote[..8].copy_from_slice(&exposed.addr().to_be_bytes());
            remote[8..16].copy_from_slice(&8_u64.to_be_bytes());
            remote[16..20].copy_from_slice(&exposed.rkey().to_be_bytes());
            remote[23] = 1;
            let remote = RemoteRegion::from_bytes(&remote);
            endpoint
                .one_sided()
                .read(&ours, 0..8, &remote, 0, 77)
                .unwrap();
            let completion = next();
            assert!(
                matches!(completion, Completion::Read(77)),
                "{role:?}: {completion:?}"
            );

            if read {
                peer.send(&taken(1));
                assert!(matches!(next(), Completion::Sent(1)), "{role:?}");
                assert!(matches!(next(), Completion::Sent(2)), "{role:?}");
                peer.send(&taken(2));
                assert!(matches!(next(), Completion::Sent(3)), "{role:?}");
                assert!(matches!(next(), Completion::Sent(4)), "{role:?}");
            }
            peer.disconnect();
            if !read {
                for expected in 1..=4 {
                    let completion = next();
                    assert!(
                        matches!(completion, Completion::Failed { id, .. } if id == expected),
                        "{role:?}: {completion:?}"
                    );
                }
            }
            assert!(matches!(next(), Completion::Disconnected(_)), "{role:?}");
            scene.stage.bystander.assert_unaffected();
        }
    }
    scene.finish();
}

/// Memory that the library exposes to one peer is unreadable for another peer, even if the other
/// peer knows the address and key.
#[test]
fn memory_lent_to_one_peer_is_closed_to_others() {
    let scene = Scene::new();
    for role in ROLES {
        let (mut honest, lender) = scene.connect(Role::Client);
        let offer = offered(&mut honest, &lender);
        let (mut thief, endpoint) = scene.connect(role);
        let target = RemoteAddr {
            addr: offer.addr,
            rkey: offer.rkey,
        };
        assert_eq!(thief.read(target), None, "{role:?}");
        thief.disconnect();
        end(&endpoint);
        honest.disconnect();
        end(&lender);
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}
