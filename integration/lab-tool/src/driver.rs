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
    /// The name on the command line, which is also that of `rdma link add`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
            Self::Both => "both",
        }
    }

    /// The driver of each device of a guest.
    pub(crate) fn each(self) -> &'static [Self] {
        match self {
            Self::Rxe => &[Self::Rxe],
            Self::Siw => &[Self::Siw],
            Self::Both => &[Self::Rxe, Self::Siw],
        }
    }

    /// Host number `index` of `count`, with its devices, which are named after their drivers.
    pub(crate) fn place(self, index: usize, count: usize) -> Place {
        let names = self
            .each()
            .iter()
            .map(|driver| driver.name().to_owned() + "0");
        Place::new(index, count, names)
    }
}
