use std::{env, fmt};

use crate::error::Error;

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// A reliable-connected queue pair of an RDMA device: over RoCE, InfiniBand or iWARP.
    Rdma,
    /// A TCP connection. The library does the work of an RDMA device in software.
    Tcp,
    /// An in-memory connection, for tests: see [the guide](crate::guide::connecting#unit-tests).
    Memory,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
            Self::Memory => "memory",
        })
    }
}

/// The transport or transports that a connector or a listener uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportChoice {
    /// The choice in the environment variable `RDMSG_TRANSPORT`: `auto`, `rdma`, `tcp` or `memory`,
    /// in upper or lower case. [`Auto`](Self::Auto) if the variable is not set.
    ///
    /// With any other value, connecting and binding fail.
    #[default]
    Environment,
    /// RDMA if a device serves the address, and TCP otherwise.
    ///
    /// A listener uses both transports, with the same port. On iWARP it listens only over RDMA,
    /// because iWARP uses the ports of TCP.
    ///
    /// A connector tries RDMA first. It falls back to TCP if no device serves the address or has a
    /// route to it, if the peer's host answers that it has no listener over RDMA, or if no answer
    /// arrives within half of the [`connect_timeout`](crate::Config::connect_timeout). The attempt
    /// over TCP must succeed within the same timeout. If the connector tries several addresses,
    /// they share the timeout. A connector does not fall back after a rejection that states a
    /// cause.
    ///
    /// The process remembers for 60 s each host that answered over TCP but not over RDMA, up to 256
    /// hosts. During these 60 s, connectors try TCP first for this host, and then RDMA if the host
    /// cannot be reached over TCP. If the host refuses a connection over TCP, the process forgets
    /// the host immediately.
    Auto,
    /// RDMA only. If RDMA is not available, connecting and binding fail.
    Rdma,
    /// TCP.
    Tcp,
    /// In-memory connections, for tests: see [the guide](crate::guide::connecting#unit-tests).
    ///
    /// The addresses are only names for listeners of this process.
    Memory,
}

impl TransportChoice {
    /// Returns the choice with this name: `auto`, `rdma`, `tcp` or `memory`, in upper or lower
    /// case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let names = [
            ("auto", Self::Auto),
            ("rdma", Self::Rdma),
            ("tcp", Self::Tcp),
            ("memory", Self::Memory),
        ];
        let mut named = names.into_iter();
        let (_, transport) = named.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(transport)
    }

    /// Checks the environment variable if this choice reads it.
    pub(crate) fn check(self) -> Result<(), Error> {
        match self {
            Self::Environment => chosen_by_environment().map(drop),
            Self::Auto | Self::Rdma | Self::Tcp | Self::Memory => Ok(()),
        }
    }

    /// Returns the choice, with [`Environment`](Self::Environment) replaced by the variable's
    /// value. The choice must have passed [`check`](Self::check).
    pub(crate) fn resolved(self) -> Self {
        match self {
            Self::Environment => chosen_by_environment().unwrap_or(Self::Auto),
            Self::Auto | Self::Rdma | Self::Tcp | Self::Memory => self,
        }
    }
}

/// Returns the choice in `RDMSG_TRANSPORT`, which is never [`TransportChoice::Environment`].
fn chosen_by_environment() -> Result<TransportChoice, Error> {
    let Some(name) = env::var_os("RDMSG_TRANSPORT") else {
        return Ok(TransportChoice::Auto);
    };
    let named = name.to_str().and_then(TransportChoice::named);
    named.ok_or_else(|| Error::InvalidConfig {
        field: "transport",
        value: format!("{name:?} in RDMSG_TRANSPORT"),
        allowed: "auto, rdma, tcp or memory".to_owned(),
    })
}
