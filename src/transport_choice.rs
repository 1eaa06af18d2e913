use std::{env, fmt};

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// A reliable-connected queue pair of an RDMA device: over RoCE, InfiniBand or iWARP.
    Rdma,
    /// A TCP connection, on which the library does the work of a device.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
        })
    }
}

/// Which transport a connector or a listener uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportChoice {
    /// RDMA if a device serves the address, and TCP otherwise.
    ///
    /// A listener listens on both with the same port, but on iWARP over RDMA alone: its ports are
    /// those of TCP. A connector tries RDMA first. It falls back to TCP, within the same
    /// [`connect_timeout`](crate::Config::connect_timeout), when no device serves the address, no
    /// route leads over one, no listener answers over RDMA, or no answer arrives in half of the
    /// time. A rejection with a cause is final.
    ///
    /// A host that answered over TCP, and not over RDMA, is remembered for 60 s, with up to 255
    /// other hosts of the process. During that time connectors try TCP first at this host, and RDMA
    /// if TCP finds no route to it. A refusal over TCP ends this time early.
    Auto,
    /// RDMA, or an error.
    Rdma,
    /// TCP.
    Tcp,
}

impl TransportChoice {
    /// Returns the transport of this name: `auto`, `rdma` or `tcp`, in any case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let names = [
            ("auto", Self::Auto),
            ("rdma", Self::Rdma),
            ("tcp", Self::Tcp),
        ];
        let mut named = names.into_iter();
        let (_, transport) = named.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(transport)
    }
}

impl Default for TransportChoice {
    fn default() -> Self {
        let Some(name) = env::var_os("RDMSG_TRANSPORT") else {
            return Self::Auto;
        };
        name.to_str().and_then(Self::named).unwrap_or_else(|| {
            warn!(
                "RDMSG_TRANSPORT is {}, and may be auto, rdma or tcp: taken for auto",
                name.display()
            );
            Self::Auto
        })
    }
}
