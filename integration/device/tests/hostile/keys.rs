//! Tests of peers that misuse a key to the library's memory. A key permits access to exactly the
//! bytes of one message, and only until the peer has confirmed this message.

use rdmsg::{Completion, Endpoint, Outgoing, SendBuffer, verbs::RemoteAddr};

use toolbox::TIME_LIMIT;

use crate::{
    peer::Peer,
    scene::{ROLES, Role, Scene, end},
    wire::{Descriptor, Frame, GRANT},
};

const MESSAGE: [u8; 5000] = [3; 5000];
const SECRET: u8 = 0x5e;

/// Reads 64 bytes of the offered message, `at` bytes after its start. Returns `None` if the device
/// rejects the READ.
fn read(peer: &mut Peer, offer: &Descriptor, at: u64) -> Option<[u8; 64]> {
    peer.read(RemoteAddr {
        addr: offer.addr + at,
        rkey: offer.rkey,
    })
}

/// Sends a large message to the peer, which reads and confirms it. Waits until the library has
/// processed the confirmation. Returns the message's descriptor, whose key is no longer valid.
fn taken(peer: &mut Peer, endpoint: &Endpoint) -> Descriptor {
    endpoint.send(Outgoing::from(&MESSAGE).with_id(1)).unwrap();
    let offer = Descriptor::of(&peer.receive());
    assert_eq!(
        read(peer, &offer, 0),
        Some([3; 64]),
        "the exposed message must be readable"
    );
    assert_eq!(read(peer, &offer, 5000 - 64), Some([3; 64]));
    peer.send(
        &Frame {
            arg: 1,
            ..Frame::control(GRANT)
        }
        .bytes(),
    );
    let completion = endpoint.next_completion_timeout(TIME_LIMIT).unwrap();
    assert!(matches!(completion, Completion::Sent(1)), "{completion:?}");
    offer
}

/// Checks that a READ without permission returns no bytes, and ends only the connection of the peer
/// that reads. `prepare` returns the descriptor, the offset of the READ, and a value that this
/// function drops after the READ.
fn refused<T>(prepare: impl Fn(&mut Peer, &Endpoint, Role) -> (Descriptor, u64, T)) {
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        let (offer, at, held) = prepare(&mut peer, &endpoint, role);
        assert_eq!(read(&mut peer, &offer, at), None, "{role:?}");
        peer.disconnect();
        end(&endpoint);
        drop(held);
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

#[test]
fn the_key_of_a_message_that_was_taken_reads_nothing() {
    refused(|peer, endpoint, _| (taken(peer, endpoint), 0, ()));
}

#[test]
fn old_key_cannot_read_buffer_in_use() {
    refused(|peer, endpoint, _| {
        let offer = taken(peer, endpoint);
        let mut buffer = SendBuffer::new(endpoint, 5000).unwrap();
        assert_eq!(
            buffer.as_ptr().addr() as u64,
            offer.addr,
            "the buffer must reuse the memory"
        );
        buffer.fill(SECRET);
        (offer, 0, buffer)
    });
}

#[test]
fn old_key_cannot_read_unsent_dropped_buffer() {
    refused(|peer, endpoint, _| {
        let offer = taken(peer, endpoint);
        SendBuffer::new(endpoint, 5000).unwrap().fill(SECRET);
        (offer, 0, ())
    });
}

#[test]
fn old_key_cannot_read_later_message() {
    refused(|peer, endpoint, _| {
        let earlier = taken(peer, endpoint);
        endpoint.send(&[SECRET; 5000]).unwrap();
        let later = Descriptor::of(&peer.receive());
        assert_eq!(
            later.addr, earlier.addr,
            "the message must reuse the memory"
        );
        assert_ne!(later.rkey, earlier.rkey);
        assert_eq!(read(peer, &later, 0), Some([SECRET; 64]));
        (earlier, 0, ())
    });
}

#[test]
fn key_cannot_read_beyond_end_of_message() {
    for beyond in [1, 64, 2000] {
        refused(|peer, endpoint, role| {
            let mut buffer = SendBuffer::new(endpoint, 8000).unwrap();
            buffer.fill(SECRET);
            buffer[..5000].fill(3);
            buffer.truncate(5000);
            endpoint.send(buffer).unwrap();
            let offer = Descriptor::of(&peer.receive());
            assert_eq!(offer.len, 5000, "{role:?}");
            assert_eq!(read(peer, &offer, 5000 - 64), Some([3; 64]));
            (offer, 5000 - 64 + beyond, ())
        });
    }
}
