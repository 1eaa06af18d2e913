//! Parts of error texts that depend on this machine: the problem and its remedy.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use crate::{
    addresses::Shown,
    machine,
    proto::{CloseReason, RAISE_MEMLOCK},
    status::OsError,
    transport_choice::Transport,
};

/// The remedy for a call that failed with `EINVAL` because a link-local address names no network
/// interface. The text is empty for all other errors.
pub(super) struct ScopeRemedy<'a>(pub(super) &'a SocketAddr, pub(super) Option<&'a OsError>);

impl fmt::Display for ScopeRemedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(SocketAddr::V6(v6), Some(error))
                if error.errno == libc::EINVAL
                    && v6.ip().is_unicast_link_local()
                    && v6.scope_id() == 0 =>
            {
                let (ip, port) = (v6.ip(), v6.port());
                write!(
                    f,
                    ". A link-local address needs its network interface: [{ip}%eth0]:{port}"
                )
            }
            Self(_, _) => Ok(()),
        }
    }
}

/// The reason why RDMA does not work over a loopback address, and the addresses to use instead.
pub(super) struct LoopbackProblem<'a>(pub(super) &'a SocketAddr, pub(super) &'a [IpAddr]);

impl fmt::Display for LoopbackProblem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address, local) = self;
        // A connect to `0.0.0.0` or `[::]` connects to this machine.
        let is = if address.ip().to_canonical().is_unspecified() {
            "stands for"
        } else {
            "is"
        };
        write!(f, "{is} a loopback address, which no RDMA device serves; ")?;
        let Some((first, rest)) = local.split_first() else {
            return f.write_str(
                "no RDMA device serves another address of this machine either: assign an address \
                 to a network interface that has an RDMA device (`rdma link` shows them)",
            );
        };
        write!(
            f,
            "use another address of this machine, even for connections within it: {first}"
        )?;
        rest.iter()
            .try_for_each(|address| write!(f, " or {address}"))
    }
}

/// The remedy if RDMA is not available because a library, a kernel module or a device is missing.
pub(super) struct NoRdmaRemedy<'a>(pub(super) &'a OsError);

impl fmt::Display for NoRdmaRemedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.errno {
            libc::ELIBACC | libc::ELIBBAD => f.write_str(
                "This program loads librdmacm.so.1 and libibverbs.so.1 of rdma-core 32 or newer: \
                 install them with their drivers (`apt install librdmacm1 \
                 libibverbs1 ibverbs-providers` on Debian and Ubuntu)",
            ),
            _ => write!(
                f,
                "Load the kernel module rdma_ucm and the driver of a device (for software RoCE: \
                 `modprobe rdma_ucm`, `rdma link add rxe0 type rxe netdev eth0`); `rdma link` \
                 shows the devices{}",
                device_remedy(machine::is_container())
            ),
        }
    }
}

/// The reason why binding to an address failed, and the remedy.
pub(super) struct BindProblem<'a>(pub(super) &'a SocketAddr, pub(super) &'a OsError);

impl fmt::Display for BindProblem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address, error) = self;
        match error.errno {
            libc::EADDRINUSE if Shown(**address).is_name() => f.write_str(
                "another listener of this process uses this name; close it, or use another name",
            ),
            libc::EADDRINUSE => {
                let transport = match error.call {
                    "claim" => Transport::Memory,
                    call if call.starts_with("rdma_") => Transport::Rdma,
                    _ => Transport::Tcp,
                };
                write!(
                    f,
                    "address in use over {transport}: another listener uses port {} on this \
                     address or on all addresses; stop that listener, or use another port \
                     ({error})",
                    address.port()
                )
            }
            libc::EADDRNOTAVAIL if error.call == "bind" => write!(
                f,
                "{error}. The address must belong to a network interface of this machine (`ip \
                 address` shows them)"
            ),
            libc::EACCES if error.call == "bind" => {
                write!(f, "{error}. Ports below 1024 need CAP_NET_BIND_SERVICE")
            }
            _ if !error.call.starts_with("rdma_") => write!(f, "{error}"),
            libc::EADDRNOTAVAIL => write!(
                f,
                "{error}. The address must belong to a network interface with an RDMA device \
                 (`rdma link` and `ip address` show both)"
            ),
            _ => write!(
                f,
                "{error}. The address must belong to a network interface with an RDMA device \
                 (`rdma link` and `ip address` show both), and its port must be free"
            ),
        }
    }
}

/// Returns the remedy that gives a container access to RDMA devices. Returns an empty text if
/// `in_container` is false.
pub(super) fn device_remedy(in_container: bool) -> &'static str {
    if in_container {
        ". This looks like a container: start it with `--device=/dev/infiniband/rdma_cm \
         --device=/dev/infiniband/uverbs0` and the host's network or an RDMA-capable one"
    } else {
        ""
    }
}

/// Returns the remedy for a program whose listener has ended: when and how to bind a new listener.
pub(super) fn rebind_remedy(reason: &CloseReason) -> &'static str {
    match reason {
        CloseReason::Os(_) => ". Bind a new one",
        _ => ". Bind again when the device is back, or set rebind of its ListenerBuilder",
    }
}

/// The limit on locked memory in bytes, and the remedies: to raise it, or to lock less memory.
pub(super) struct MemlockRemedy {
    pub(super) limit: u64,
    pub(super) in_container: bool,
}

impl fmt::Display for MemlockRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit,
            in_container,
        } = self;
        write!(
            f,
            "The process may lock {limit} bytes; {RAISE_MEMLOCK}, or lower receive_window, \
             send_depth or eager_size in the Config"
        )?;
        if *in_container {
            f.write_str(". This looks like a container: start it with `--ulimit memlock=-1`")?;
        }
        Ok(())
    }
}
