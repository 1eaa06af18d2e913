//! Tests the memory into which the library reads large messages. On iWARP, a READ request contains
//! the key of this destination memory, because the peer's device needs the key to write the answer.
//! The key must permit no other access.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket,
    sockopt::RcvBufForce,
};
use rdmsg::verbs::{MemoryRegion, RemoteAddr, SendWr};
use toolbox::{Lab, TIME_LIMIT};

use crate::{
    large::{descriptor, rendezvous},
    scene::{ROLES, Scene, end},
};

#[test]
fn a_message_that_was_delivered_cannot_be_written_to() {
    if !Lab::get().is_iwarp() {
        return println!("does not apply: a READ of this device sends no key to the peer");
    }
    let scene = Scene::new();
    for role in ROLES {
        let (mut peer, endpoint) = scene.connect(role);
        let exposed = peer.register(5000);
        exposed.copy_in(0, &[7; 5000]);
        let wire = Wire::listen();
        peer.send(&rendezvous(&descriptor(&exposed).bytes()));
        let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(*message, [7; 5000]);

        let landing = wire.read_destination(&exposed);
        assert_eq!(landing.addr, message.as_ptr().addr() as u64, "{role:?}");
        peer.send_as(&[6; 64], |id, sge| SendWr::write(id, sge, landing));
        peer.wait_disconnected();
        peer.disconnect();
        end(&endpoint);
        assert_eq!(*message, [7; 5000], "{role:?}");
        scene.stage.bystander.assert_unaffected();
    }
    scene.finish();
}

/// A packet socket, which receives all packets of this host.
struct Wire(OwnedFd);

impl Wire {
    fn listen() -> Self {
        let socket = socket(
            AddressFamily::Packet,
            SockType::Datagram,
            SockFlag::SOCK_NONBLOCK,
            SockProtocol::EthAll,
        );
        let socket = socket.unwrap();
        // Use a large buffer, because the socket also receives the bystander's packets.
        setsockopt(&socket, RcvBufForce, &(16 << 20)).unwrap();
        Self(socket)
    }

    /// Searches the received packets for the READ request for `exposed`. Returns the address and
    /// key of the destination (sink) in this request. The request contains the sink's key and
    /// address, the length, and the source's key and address (RFC 5040, section 4.4).
    fn read_destination(&self, exposed: &MemoryRegion) -> RemoteAddr {
        let mut source = exposed.rkey().to_be_bytes().to_vec();
        source.extend(exposed.addr().to_be_bytes());
        let mut packet = vec![0; 1 << 16];
        loop {
            let len = recv(self.0.as_raw_fd(), &mut packet, MsgFlags::empty());
            let packet = &packet[..len.expect("a packet must contain the READ")];
            let found = packet.windows(source.len()).position(|it| it == source);
            if let Some(sink) = found.and_then(|at| packet.get(at - 16..at - 4)) {
                let (rkey, addr) = sink.split_at(4);
                return RemoteAddr {
                    addr: u64::from_be_bytes(addr.try_into().unwrap()),
                    rkey: u32::from_be_bytes(rkey.try_into().unwrap()),
                };
            }
        }
    }
}
