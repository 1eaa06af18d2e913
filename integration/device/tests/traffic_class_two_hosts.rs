//! Checks the traffic class in the packets of connections between two hosts. Host `a` listens and
//! host `b` connects. Both hosts capture the packets of both directions.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use rdmsg::{Config, Connector, Listener, Transport, TransportChoice};
use toolbox::{DeviceTest, TIME_LIMIT};

/// The UDP destination port of RoCE packets.
const ROCE: u16 = 4791;

/// The RST flag of TCP. Packets with this flag are skipped, because a reset has the traffic class
/// of the packet that it answers.
const RST: u8 = 4;

/// A packet socket that receives all incoming and outgoing packets of this host, without their link
/// headers.
struct Packets(OwnedFd);

impl Packets {
    fn new() -> Self {
        let flags = SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::EthAll;
        let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, protocol).unwrap();
        setsockopt(&socket, sockopt::RcvBuf, &(4 << 20)).unwrap();
        Self(socket)
    }

    /// Returns the traffic classes of the connection's packets. The first set is for packets from
    /// this host, the second set for packets from the other host.
    fn classes(self, lab: &DeviceTest, over: Transport, port: u16) -> [BTreeSet<u8>; 2] {
        let mut bytes = [0; 2048];
        let (mut sent, mut received) = (BTreeSet::new(), BTreeSet::new());
        while let Ok(len) = recv(self.0.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            let packet = Packet::parse(&bytes[..len]).filter(|packet| packet.is_of(over, port));
            match packet.map(|packet| (packet.from, packet.to, packet.class)) {
                Some((from, to, class)) if (from, to) == (lab.addr, lab.peer) => {
                    sent.insert(class);
                }
                Some((from, to, class)) if (from, to) == (lab.peer, lab.addr) => {
                    received.insert(class);
                }
                _ => {}
            }
        }
        [sent, received]
    }
}

/// An IPv4 packet.
struct Packet<'a> {
    class: u8,
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    /// The bytes after the IP header.
    rest: &'a [u8],
}

impl<'a> Packet<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.first_chunk::<20>()?;
        let [from, to] = [12, 16].map(|at| {
            let [a, b, c, d] = [header[at], header[at + 1], header[at + 2], header[at + 3]];
            IpAddr::from([a, b, c, d])
        });
        let rest = bytes.get(usize::from(header[0] & 15) * 4..)?;
        (header[0] >> 4 == 4).then_some(Self {
            class: header[1],
            from,
            to,
            protocol: header[9],
            rest,
        })
    }

    /// Returns true if the packet belongs to a connection over `transport`. A TCP packet must be
    /// from or to `port`. A RoCE packet does not contain this port, so the packets of all RoCE
    /// connections match.
    fn is_of(&self, transport: Transport, port: u16) -> bool {
        let Some(header) = self.rest.first_chunk::<16>() else {
            return false;
        };
        let [from, to] = [0, 2].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        match (transport, self.protocol) {
            (Transport::Tcp, 6) => (from == port || to == port) && header[13] & RST == 0,
            // Skip packets to queue pair 1, because they belong to the connection manager.
            (Transport::Rdma, 17) => to == ROCE && header[13..16] > [0, 0, 1][..],
            _ => false,
        }
    }
}

/// Connects and exchanges messages. Returns the traffic classes of the packets from `a` and from
/// `b`.
fn classes(over: Transport, port: u16, class: Option<[u8; 2]>) -> [BTreeSet<u8>; 2] {
    let lab = DeviceTest::start();
    let packets = Packets::new();
    let is_a = lab.host == "a";
    let config = Config::default().with(|config| {
        config.transport = match over {
            Transport::Tcp => TransportChoice::Tcp,
            _ => TransportChoice::Rdma,
        };
        config.traffic_class = class.map(|[a, b]| if is_a { a } else { b });
        config.connect_timeout = TIME_LIMIT;
        config.keepalive_timeout = TIME_LIMIT;
        config.close_timeout = TIME_LIMIT;
    });
    let endpoint = if is_a {
        let listener = Listener::builder().config(&config).bind(lab.at(port));
        listener.unwrap().accept_timeout(TIME_LIMIT).unwrap()
    } else {
        let connector = Connector::new().config(&config).retry_refused(true);
        connector.connect(lab.peer_at(port)).unwrap()
    };
    for len in [9, 100_000] {
        endpoint.send(&vec![7; len]).unwrap();
        assert_eq!(endpoint.recv_timeout(TIME_LIMIT).unwrap().len(), len);
    }
    let [here, there] = packets.classes(&lab, over, port);
    // Ignore the error: the side that closes first also ends the connection of the other side.
    let _ = endpoint.close();
    if is_a { [here, there] } else { [there, here] }
}

fn only(class: u8) -> BTreeSet<u8> {
    BTreeSet::from([class])
}

#[test]
fn roce_has_the_class_of_the_connecting_side() {
    let chosen = classes(Transport::Rdma, 7595, Some([40 << 2, 26 << 2]));
    assert_eq!(chosen, [only(26 << 2), only(26 << 2)]);
    assert_eq!(classes(Transport::Rdma, 7596, None), [only(0), only(0)]);
}

#[test]
fn tcp_has_the_class_of_each_side() {
    let chosen = classes(Transport::Tcp, 7597, Some([40 << 2, 26 << 2]));
    assert_eq!(chosen, [only(40 << 2), only(26 << 2)]);
    assert_eq!(classes(Transport::Tcp, 7598, None), [only(0), only(0)]);
}
