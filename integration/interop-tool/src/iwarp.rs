//! What is different on software iWARP: some cases take what it lacks, where the programs in C fail
//! with each other; and its driver loses what comes too soon.

use anyhow::Result;
use toolbox::Host;

use crate::case::{Case, Who};

/// What the case takes that software iWARP lacks.
pub(crate) fn lacks(case: &Case) -> Option<&'static str> {
    const BY_HAND: &str = "queue pairs that a program connects by ibv_modify_qp(3)";
    // Where the connecting side's driver finds bytes behind the reply, it gives the connection up.
    const FIRST: &str = "a listening side that may speak first (RFC 5044, 7.1)";
    match (&*case.program, &*case.what) {
        ("udaddy" | "mckey", _) => Some("datagrams"),
        ("rc_pingpong" | "rc_example", _) => Some(BY_HAND),
        ("devinfo", what) if what.contains("GID") => Some("GIDs that ibv_devinfo(1) prints"),
        ("rping", what) if what.contains("queue pair") => Some(BY_HAND),
        ("ucmatose", what) if what != "no messages" => Some(FIRST),
        // It grants credits at once; and where it closes while it is told of credits, its driver
        // resets the connection, and loses what TCP has not sent.
        ("rstream", _) if case.server.who == Who::C => Some(FIRST),
        ("rstream", "inline") => Some("200 bytes of inline data"),
        ("rstream", what) if what.contains("at a server of IPv4") => {
            Some("ports that have addresses of either family")
        }
        (_, _) => None,
    }
}

/// Has this host, the clients', hold back the first SEND of each connection for a moment. A driver
/// that accepts sends its reply before it watches the connection; where it is held up in between,
/// what a client sent meanwhile lies there until more comes, and a program in C sends no more.
pub(crate) fn hold_back_first_sends() -> Result<()> {
    // Untagged, of queue 0, with the first message sequence number (RFC 5041, 4.3), behind headers
    // of TCP with its timestamps and of IP.
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
