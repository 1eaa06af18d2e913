//! Shell commands that change and restore a host's network and RDMA device. In the lab, the network
//! device is `eth0`.

use std::net::SocketAddr;

/// The server's address in the scenario that changes the address.
pub(crate) const SECOND_ADDRESS: &str = "10.8.1.2";

/// The command that replaces [`SECOND_ADDRESS`] with another address.
pub(crate) const CHANGE_ADDRESS: &str =
    "ip addr del 10.8.1.2/24 dev eth0 && ip addr add 10.8.1.3/24 dev eth0";

/// A command that waits until the RDMA device has a GID for the IPv4 address `ADDRESS`. On iWARP,
/// the command does nothing, because an iWARP device has no such GIDs.
const AWAIT_GID: &str = "grep -qs RNIC /sys/class/infiniband/$LAB_DEV/node_type || { \
     GID=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' $(echo ADDRESS | tr . ' ')) && \
     for i in $(seq 1200); do grep -qs $GID /sys/class/infiniband/$LAB_DEV/ports/1/gids/* && break; sleep 0.05; done && \
     grep -qs $GID /sys/class/infiniband/$LAB_DEV/ports/1/gids/*; }";

/// Returns the command that adds an address to the network device, and waits until the RDMA device
/// accepts connections to this address.
pub(crate) fn add_address(address: &str) -> String {
    let await_gid = AWAIT_GID.replace("ADDRESS", address);
    format!("ip addr add {address}/24 dev eth0 && {await_gid}")
}

/// The command that removes all impairments and addresses that a scenario has added.
pub(crate) const CLEAR: &str = "tc qdisc del dev eth0 root 2>/dev/null; \
     for n in 1 2 3; do ip addr del 10.8.1.$n/24 dev eth0 2>/dev/null; done; true";

/// The command that starts to remove the RDMA device. It does not wait for the end of the removal,
/// which the kernel delays until no process uses the device.
pub(crate) const REMOVE_DEVICE: &str = "rdma link delete $LAB_DEV >/dev/null 2>&1 &";

/// Returns the command that creates a new RDMA device. Before the creation, the command waits until
/// the old device is removed. After the creation, it waits until the new device accepts
/// connections. In the lab, the name of a device is the name of its driver followed by 0.
pub(crate) fn restore_device() -> String {
    const SCRIPT: &str = "for i in $(seq 1200); do [ -e /sys/class/infiniband/$LAB_DEV ] || break; sleep 0.05; done; \
         rdma link add $LAB_DEV type ${LAB_DEV%0} netdev eth0 && AWAIT_GID && \
         for i in $(seq 1200); do grep -qs ACTIVE /sys/class/infiniband/$LAB_DEV/ports/1/state && exit 0; sleep 0.05; done; exit 1";
    SCRIPT.replace("AWAIT_GID", &AWAIT_GID.replace("ADDRESS", "$LAB_ADDR"))
}

/// Returns the command that runs clients of other protocols against the server, some of them
/// concurrently. The command kills half of these clients after 0.1 to 0.3 s, and ignores the
/// results of all clients.
pub(crate) fn strangers(server: SocketAddr) -> String {
    const SCRIPT: &str = "{ for i in 1 2 3; do timeout -s KILL 10 ucmatose -s HOST -p PORT -c 20 -C 1 & \
         timeout -s KILL 0.$i ucmatose -s HOST -p PORT -c 20 -C 1; timeout -s KILL 10 rping -c -a HOST -p PORT -C 1; \
         timeout -s KILL 0.$i rping -c -a HOST -p PORT -C 1; wait; done; true; } >/dev/null 2>&1";
    SCRIPT
        .replace("HOST", &server.ip().to_string())
        .replace("PORT", &server.port().to_string())
}
