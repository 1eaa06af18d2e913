//! Reliable connections without the connection manager: the programs exchange the attributes of
//! their queue pairs over TCP, and the programs themselves change the states of the queue pairs.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use rdmsg::verbs::{
    AccessFlags, AhAttr, Context, DeviceList, Gid, GidType, GlobalRoute, LinkLayer, Mtu, PortAttr,
    QpAttr, QpState, QueuePair,
};

use crate::{Result, cm::lookup};

/// The time limit for a message from the peer over TCP, and for a connection attempt.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// A port of an open RDMA device.
#[derive(Debug)]
pub struct Port {
    /// The open device.
    pub context: Context,
    /// The port's number, counted from 1.
    pub number: u8,
    /// The port's attributes, as the device reports them.
    pub attr: PortAttr,
    /// The port's global identifier (GID). It is all zeros on InfiniBand if the user gives no
    /// index, because InfiniBand needs no GID.
    pub gid: Gid,
    /// The index of the GID in the port's GID table, or `None` if the GID is all zeros.
    gid_index: Option<u8>,
}

impl Port {
    /// Opens the device with this name, or the first device if `device` is `None`.
    ///
    /// An Ethernet port needs a GID. If `gid_index` is `None`, selects the port's first RoCE v2 GID
    /// with an IPv4 address. If no GID has an IPv4 address, selects the first RoCE v2 GID with an
    /// IPv6 address.
    ///
    /// # Errors
    ///
    /// Fails if the device, the port or the GID does not exist.
    pub fn open(device: Option<&str>, number: u8, gid_index: Option<u8>) -> Result<Self> {
        let devices = DeviceList::new()?;
        let device = match device {
            Some(name) => devices
                .find(name)
                .ok_or_else(|| format!("there is no device {name}; `rdma link` lists all"))?,
            None => devices
                .iter()
                .next()
                .ok_or("there is no RDMA device; see `rdma link`")?,
        };
        let context = device.open()?;
        let attr = context
            .query_port(number)
            .map_err(|error| format!("port {number} of {}: {error}", device.name()))?;
        let gid_index = match gid_index {
            None if attr.link_layer == LinkLayer::ETHERNET => Some(usual_gid(&context, number)?),
            index => index,
        };
        let gid = match gid_index {
            None => Gid::default(),
            Some(index) => context
                .query_gid(number, index.into())
                .ok()
                .map(|entry| entry.gid)
                .filter(|gid| !gid.is_unspecified())
                .ok_or_else(|| format!("the table of port {number} has no GID at index {index}"))?,
        };
        Ok(Self {
            context,
            number,
            attr,
            gid,
            gid_index,
        })
    }

    /// Moves a new queue pair to the state INIT, in which the program can post receives. `access`
    /// contains the operations that the peer may perform on this program's memory.
    ///
    /// # Errors
    ///
    /// Fails if `ibv_modify_qp` fails.
    pub fn init(&self, qp: &QueuePair, access: AccessFlags) -> Result<()> {
        Ok(qp.modify(&QpAttr {
            qp_state: Some(QpState::INIT),
            pkey_index: Some(0),
            port_num: Some(self.number),
            qp_access_flags: Some(access),
            ..QpAttr::default()
        })?)
    }

    /// Connects `qp` to the peer's queue pair: moves `qp` to the state RTR (ready to receive), and
    /// then to RTS (ready to send).
    ///
    /// # Errors
    ///
    /// Fails if `ibv_modify_qp` fails.
    pub fn connect(&self, qp: &QueuePair, peer: &Peer, terms: &Terms) -> Result<()> {
        // If the peer has no GID, the subnet routes the packets by the peer's local identifier
        // (LID).
        let grh = (!peer.gid.is_unspecified()).then(|| GlobalRoute {
            dgid: peer.gid,
            sgid_index: self.gid_index.unwrap_or(0),
            hop_limit: 1,
            ..GlobalRoute::default()
        });
        qp.modify(&QpAttr {
            qp_state: Some(QpState::RTR),
            ah_attr: Some(AhAttr {
                grh,
                dlid: peer.lid,
                sl: terms.sl,
                port_num: self.number,
                ..AhAttr::default()
            }),
            path_mtu: Some(terms.mtu),
            dest_qp_num: Some(peer.qp_num),
            rq_psn: Some(peer.psn),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(terms.min_rnr_timer),
            ..QpAttr::default()
        })?;
        Ok(qp.modify(&QpAttr {
            qp_state: Some(QpState::RTS),
            timeout: Some(terms.timeout),
            retry_cnt: Some(terms.retry_cnt),
            rnr_retry: Some(terms.rnr_retry),
            sq_psn: Some(terms.psn),
            max_rd_atomic: Some(1),
            ..QpAttr::default()
        })?)
    }
}

fn usual_gid(context: &Context, port: u8) -> Result<u8> {
    let table = context.gid_table(port)?;
    let usable = |ipv4: bool| {
        table.iter().find(|entry| {
            let is_ipv4 = entry.gid.octets()[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            entry.gid_type == GidType::ROCE_V2 && is_ipv4 == ipv4
        })
    };
    let entry = usable(true).or_else(|| usable(false));
    let index = entry.and_then(|entry| u8::try_from(entry.gid_index).ok());
    Ok(index.ok_or("the port has no RoCE v2 GID; choose another GID by its index")?)
}

/// The attributes of a queue pair and of its port. The two programs exchange these attributes
/// before they connect their queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "programs set each field")]
pub struct Peer {
    /// The port's local identifier (LID). It is 0 on Ethernet.
    pub lid: u16,
    /// The number of the queue pair.
    pub qp_num: u32,
    /// The packet sequence number (PSN) of the first packet.
    pub psn: u32,
    /// The port's global identifier (GID), or all zeros.
    pub gid: Gid,
}

impl Peer {
    /// Encodes the attributes as the text that `ibv_rc_pingpong` sends over TCP. The text includes
    /// a terminating zero byte.
    #[must_use]
    pub fn to_text(&self) -> [u8; 52] {
        let Self {
            lid,
            qp_num,
            psn,
            gid,
        } = self;
        let gid = u128::from_be_bytes(gid.octets());
        let text = format!("{lid:04x}:{qp_num:06x}:{psn:06x}:{gid:032x}\0");
        text.as_bytes()
            .try_into()
            .expect("queue pair and packet numbers must fit into 24 bits, which are 6 digits")
    }

    /// Parses a text created by [`to_text`](Self::to_text) or by `ibv_rc_pingpong`.
    ///
    /// # Errors
    ///
    /// Fails if the text is malformed.
    pub fn from_text(bytes: &[u8; 52]) -> Result<Self> {
        let peer = || {
            let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\0')?;
            let [lid, qp_num, psn, gid] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
            let number = |field| u32::from_str_radix(field, 16).ok();
            Some(Self {
                lid: u16::try_from(number(lid)?).ok()?,
                qp_num: number(qp_num)?,
                psn: number(psn)?,
                gid: Gid::new(u128::from_str_radix(gid, 16).ok()?.to_be_bytes()),
            })
        };
        Ok(peer().ok_or_else(|| {
            let received = shown(bytes);
            format!(
                "the peer's message is not an address{received}; expected LID:QPN:PSN:GID as \
                 ibv_rc_pingpong sends it"
            )
        })?)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lid,
            qp_num,
            psn,
            gid,
        } = self;
        write!(
            f,
            "LID {lid:#06x}, QPN {qp_num:#08x}, PSN {psn:#08x}, GID {gid}"
        )
    }
}

/// Returns a random packet sequence number (PSN) for the first packet. With a constant PSN, the
/// device could accept delayed packets of an earlier connection.
#[must_use]
pub fn first_psn() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    // A PSN has 24 bits.
    RandomState::new().hash_one(std::process::id()) as u32 & 0xff_ffff
}

/// Parses a path MTU in bytes, which is the value of a command line option.
///
/// # Errors
///
/// Fails if RDMA has no MTU of this size. The error lists the permitted sizes.
pub fn mtu(bytes: &str) -> Result<Mtu, String> {
    let all = [
        Mtu::MTU_256,
        Mtu::MTU_512,
        Mtu::MTU_1024,
        Mtu::MTU_2048,
        Mtu::MTU_4096,
    ];
    let known = |mtu: &Mtu| mtu.bytes().is_some_and(|size| size.to_string() == bytes);
    all.into_iter()
        .find(known)
        .ok_or_else(|| "the MTU must be 256, 512, 1024, 2048 or 4096".into())
}

/// The connection attributes that the programs choose. The path MTU must be equal on both sides.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "programs set each field")]
pub struct Terms {
    /// The path MTU: the maximum payload of a packet.
    pub mtu: Mtu,
    /// The service level of the packets.
    pub sl: u8,
    /// The packet sequence number (PSN) of this queue pair's first packet.
    pub psn: u32,
    /// The encoded time that the peer waits before it retries a send that failed because this queue
    /// pair had no posted receive.
    pub min_rnr_timer: u8,
    /// The exponent n of the acknowledgement timeout, 4.096 µs × 2ⁿ.
    pub timeout: u8,
    /// The maximum number of retries if no acknowledgement arrives.
    pub retry_cnt: u8,
    /// The maximum number of retries if the peer has no posted receive. The value 7 means no limit.
    pub rnr_retry: u8,
}

/// Returns a TCP connection for the exchange of attributes. If `server` is `None`, listens and
/// accepts the first client. If `server` is a host, connects to it.
///
/// # Errors
///
/// Fails if the program cannot connect, listen or accept.
pub fn connect_or_accept(server: Option<&str>, port: u16) -> Result<TcpStream> {
    let stream = match server {
        Some(host) => {
            let address = lookup(host, port)?;
            TcpStream::connect_timeout(&address, TIME_LIMIT)
                .map_err(|error| format!("cannot connect to {address} over TCP: {error}"))?
        }
        None => {
            // A socket bound to `::` accepts IPv6 and IPv4. If the host has no IPv6, listen on IPv4
            // only.
            let listener =
                TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
            let listener =
                listener.map_err(|error| format!("cannot listen on TCP port {port}: {error}"))?;
            listener.accept()?.0
        }
    };
    stream.set_write_timeout(Some(TIME_LIMIT))?;
    Ok(stream)
}

/// Sends a message to the peer in one write.
///
/// # Errors
///
/// Fails if the connection breaks.
pub fn send_bytes(mut stream: &TcpStream, bytes: &[u8]) -> Result<()> {
    Ok(stream.write_all(bytes)?)
}

/// Receives exactly `LEN` bytes from the peer, within 30 s. `what` names the message in errors.
///
/// # Errors
///
/// Fails if the peer closes the connection or the time limit expires. The error quotes the bytes
/// that have arrived.
pub fn receive_bytes<const LEN: usize>(mut stream: &TcpStream, what: &str) -> Result<[u8; LEN]> {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut bytes = [0; LEN];
    let mut len = 0;
    while len < LEN {
        // The time limit applies to all bytes together. With a time limit for each read, a peer
        // could send single bytes slowly forever.
        let left = deadline.saturating_duration_since(Instant::now());
        let read = if left.is_zero() {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            stream.set_read_timeout(Some(left))?;
            stream.read(&mut bytes[len..])
        };
        let problem = match read.map_err(|error| (error.kind(), error)) {
            Ok(count @ 1..) => {
                len += count;
                continue;
            }
            Err((io::ErrorKind::Interrupted, _)) => continue,
            // Treat a reset as a close by the peer: the peer's kernel resets the connection if the
            // peer closes a socket that contains unread bytes.
            Ok(0) | Err((io::ErrorKind::ConnectionReset, _)) => {
                format!("the peer closed before it had sent {what}")
            }
            Err((io::ErrorKind::WouldBlock, _)) => {
                format!("the peer did not send {what} within {TIME_LIMIT:?}")
            }
            Err((_, error)) => format!("cannot receive {what}: {error}"),
        };
        let received = shown(&bytes[..len]);
        return Err(format!("{problem}: received {len} of {LEN} bytes{received}").into());
    }
    Ok(bytes)
}

/// Returns the beginning of a received message, at most 60 bytes, as a quoted text for an error.
fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    match bytes {
        [] => String::new(),
        [first @ .., _] if first.len() < MOST => format!(": \"{}\"", bytes.escape_ascii()),
        _ => format!(": \"{}\" ...", bytes[..MOST].escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_round_trips() {
        let peer = Peer {
            lid: 0xabc,
            qp_num: 0x11,
            psn: 0xff_fffe,
            gid: Gid::new([7; 16]),
        };
        let text = peer.to_text();
        assert_eq!(
            &text[..],
            b"0abc:000011:fffffe:07070707070707070707070707070707\0"
        );
        assert_eq!(Peer::from_text(&text).unwrap(), peer);
        assert!(Peer::from_text(&[b':'; 52]).is_err());
        assert!(Peer::from_text(&[0; 52]).is_err());
    }

    /// Returns two connected sockets. The second socket represents the peer.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, peer)
    }

    #[test]
    fn foreign_message_is_shown() {
        let (ours, peer) = pair();
        send_bytes(&peer, b"GET / HTTP/1.1\r\n").unwrap();
        drop(peer);
        let error = receive_bytes::<52>(&ours, "its address")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "the peer closed before it had sent its address: received 16 of 52 bytes: \"GET / \
             HTTP/1.1\\r\\n\""
        );
        let error = Peer::from_text(&[b'a'; 52]).unwrap_err().to_string();
        assert!(
            error.contains("aaaa") && error.contains("ibv_rc_pingpong"),
            "{error}"
        );
    }
}
