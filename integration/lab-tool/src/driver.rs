use std::fmt;

use clap::ValueEnum;

/// The drivers of which a guest may have a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// Software RoCE.
    #[default]
    Rxe,
    /// Software iWARP. Where the distribution leaves it out, it is built on first use.
    Siw,
}

impl Driver {
    /// What a guest's device is called.
    pub(crate) fn device(self) -> &'static str {
        match self {
            Self::Rxe => "rxe0",
            Self::Siw => "siw0",
        }
    }

    pub(crate) fn find(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }

    /// Whether the device lists the addresses that it can be reached at.
    pub(crate) fn lists_addresses(self) -> bool {
        self == Self::Rxe
    }
}

/// As `rdma link add` calls it.
impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        })
    }
}
