//! Lines of shell that impair the network of a host of the lab, where its device is `eth0`.

/// Treats all packets of RDMA that this host sends as `netem` says, and nothing else: the conductor
/// is heard on the same wire.
#[must_use]
pub fn impair(netem: &str) -> String {
    const SCRIPT: &str = "tc qdisc add dev eth0 root handle 1: prio bands 3 priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 && \
         tc qdisc add dev eth0 parent 1:3 handle 30: netem limit 100000 NETEM && \
         tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3";
    SCRIPT.replace("NETEM", netem)
}

/// Ends what [`impair`] began.
pub const REPAIR: &str = "tc qdisc del dev eth0 root";
