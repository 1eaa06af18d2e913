use clap::ValueEnum;
use rdmsg::TransportChoice;

/// The transport that the command line selects for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Carrier {
    /// RDMA if a device serves the address, and TCP otherwise
    Auto,
    Rdma,
    Tcp,
}

impl Carrier {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
        }
    }
}

impl From<Carrier> for TransportChoice {
    fn from(carrier: Carrier) -> Self {
        match carrier {
            Carrier::Auto => Self::Auto,
            Carrier::Rdma => Self::Rdma,
            Carrier::Tcp => Self::Tcp,
        }
    }
}
