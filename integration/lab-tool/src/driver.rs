use std::fmt;

use clap::ValueEnum;

use crate::place::Place;

/// The drivers of which a guest may have a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// Software RoCE.
    #[default]
    Rxe,
    /// Software iWARP. Where the distribution leaves it out, it is built on first use.
    Siw,
    /// A device of each, the second with a network device and addresses of its own.
    Both,
}

impl Driver {
    /// What a guest's device is called; of several, the first.
    pub(crate) fn device(self) -> &'static str {
        match self {
            Self::Rxe | Self::Both => "rxe0",
            Self::Siw => "siw0",
        }
    }

    /// That of the guest's second device, if it has one.
    pub(crate) fn second(self) -> Option<Self> {
        (self == Self::Both).then_some(Self::Siw)
    }

    /// That of the guest's first device.
    pub(crate) fn first(self) -> Self {
        if self == Self::Both { Self::Rxe } else { self }
    }

    /// Host number `index` of `count`, with its devices.
    pub(crate) fn place(self, index: usize, count: usize) -> Place {
        let place = Place::new(index, count, self.device());
        match self.second() {
            Some(second) => place.beside(second.device()),
            None => place,
        }
    }

    pub(crate) fn includes(self, other: Self) -> bool {
        self == other || self.second() == Some(other)
    }

    pub(crate) fn find(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }

    /// Whether the device lists the addresses that it can be reached at.
    pub(crate) fn lists_addresses(self) -> bool {
        self != Self::Siw
    }
}

/// As `rdma link add` calls it, if it is one.
impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
            Self::Both => "both",
        })
    }
}
