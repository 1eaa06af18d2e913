use std::fmt;

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportKind {
    /// A reliable-connected queue pair of an RDMA device: over RoCE, InfiniBand or iWARP.
    Rdma,
    /// A TCP connection, on which the library does the work of a device.
    Tcp,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
        })
    }
}
