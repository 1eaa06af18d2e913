//! The cases that software iWARP does not support. Most of them need a capability that the driver
//! lacks, and also fail between two C programs. In addition, the driver mishandles data that
//! arrives immediately after the connection setup.

use anyhow::Result;
use toolbox::Host;

use crate::case::{Case, Language};

/// Returns the capability that this case needs and software iWARP lacks. Returns `None` if the case
/// can run.
pub(crate) fn lacks(case: &Case) -> Option<&'static str> {
    const BY_HAND: &str = "queue pairs that a program connects by ibv_modify_qp(3)";
    // The driver of the connecting side aborts the connection if data arrives immediately after the
    // reply to the connection request.
    const FIRST: &str = "a listening side that may speak first (RFC 5044, 7.1)";
    match (&*case.program, &*case.what) {
        ("udaddy" | "mckey", _) => Some("datagrams"),
        ("rc_pingpong" | "rc_example", _) => Some(BY_HAND),
        ("valkey", _) => Some("RDMA WRITE with immediate data"),
        ("devinfo", what) if what.contains("GID") => Some("GIDs that ibv_devinfo(1) prints"),
        ("rping", what) if what.contains("queue pair") => Some(BY_HAND),
        ("ucmatose", what) if what != "no messages" => Some(FIRST),
        // The C server sends first, because it grants credits immediately. In addition, if credits
        // from the client arrive during the server's close, the server's driver resets the
        // connection and discards unsent data.
        ("rstream", _) if case.server.language == Language::C => Some(FIRST),
        ("rstream", "inline") => Some("200 bytes of inline data"),
        ("rstream", what) if what.contains("at a server of IPv4") => {
            Some("ports that have addresses of either family")
        }
        (_, _) => None,
    }
}

/// Delays the first SEND of each connection that the clients on this host establish. The driver of
/// the accepting side sends its reply before it starts to watch the socket. If a SEND arrives
/// between these two steps, the driver does not notice the SEND until further data arrives. A C
/// program sends no further data.
pub(crate) fn delay_first_sends() -> Result<()> {
    // The filters match segments of untagged queue 0 with message sequence number 1 (RFC 5041,
    // 4.3). The offsets assume an IP header without options, and a TCP header with timestamps.
    const SCRIPT: &str = "set -e
         tc qdisc add dev eth0 root handle 1: prio bands 3 \
                          priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1
         tc qdisc add dev eth0 parent 1:3 handle 30: netem delay 20ms
         first() {
             tc filter add dev eth0 parent 1: protocol $1 prio $2 u32 \
                 match u32 0x4140 0xfff0 at $3 match u32 0 0xffffffff at $(($3 + 8)) \
                 match u32 1 0xffffffff at $(($3 + 12)) flowid 1:3
         }
         first ip 1 52
         first ipv6 2 72";
    Host::here().shell(SCRIPT).map(drop)
}
