use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    /// Half the time of a message and its answer
    HalfRoundTrip,
    /// The rate of messages to a server, which answers the last one
    OneWay,
    /// The same to a server of the lowest priority, so that its window is full
    Pressed,
    /// Half the time of a message that is written into the other's memory, where it looks for it,
    /// and its answer
    Ring,
    /// The processor time of a process that receives a message every 2 ms, for each message
    Sparse,
    /// The time of an RDMA READ
    Read,
    /// The rate of RDMA WRITEs
    Write,
    /// The time to open a connection and to close it
    #[value(skip)]
    Connect,
    /// What an idle connection takes
    #[value(skip)]
    Memory,
    /// What a call executes above the driver
    #[value(skip)]
    Call,
    /// What a call allocates
    #[value(skip)]
    Allocations,
    /// What one end executes for a round trip in its process, the kernel apart
    #[value(skip)]
    Loop,
}

impl Measure {
    /// Whether more is better.
    pub(crate) fn is_rate(self) -> bool {
        self.is_one_way() || self == Self::Write
    }

    /// Whether messages go to a server, and it answers the last one.
    pub(crate) fn is_one_way(self) -> bool {
        matches!(self, Self::OneWay | Self::Pressed)
    }

    /// As on a command line.
    pub(crate) fn argument(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| {
            format!("--measure={}", value.get_name())
        })
    }

    /// A figure with its unit.
    pub(crate) fn show(self, size: usize, figure: f64) -> String {
        match self {
            Self::HalfRoundTrip | Self::Ring | Self::Sparse | Self::Read | Self::Connect => {
                format!("{figure:.2} µs")
            }
            Self::OneWay | Self::Pressed | Self::Write if size < 4096 => {
                format!("{:.2} k/s", figure * 1e-3)
            }
            Self::OneWay | Self::Pressed | Self::Write => {
                format!("{:.2} MiB/s", figure * size as f64 / f64::from(1 << 20))
            }
            Self::Memory => format!("{figure:.0} KiB"),
            Self::Call | Self::Loop => format!("{figure:.0}"),
            Self::Allocations => format!("{figure:.2}"),
        }
    }
}

/// What a table calls it.
impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HalfRoundTrip => "half round trip",
            Self::OneWay => "one way",
            Self::Pressed => "one way, pressed",
            Self::Ring => "half round trip, written",
            Self::Sparse => "processor time, a message in 2 ms",
            Self::Read => "RDMA READ",
            Self::Write => "RDMA WRITE",
            Self::Connect => "connect and close",
            Self::Memory => "idle connection",
            Self::Call => "instructions a call",
            Self::Allocations => "allocations a call",
            Self::Loop => "instructions a round trip",
        })
    }
}

/// A size for people.
pub(crate) fn bytes(size: usize) -> String {
    match size {
        0 => "-".to_owned(),
        1..1024 => format!("{size} B"),
        1024..0x10_0000 => format!("{} KiB", size >> 10),
        _ => format!("{} MiB", size >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_unit() {
        assert_eq!(Measure::HalfRoundTrip.show(64, 28.104), "28.10 µs");
        assert_eq!(Measure::OneWay.show(64, 26_000.0), "26.00 k/s");
        assert_eq!(Measure::OneWay.show(64 << 10, 2000.0), "125.00 MiB/s");
        assert_eq!(bytes(64 << 10), "64 KiB");
        assert_eq!(bytes(8 << 20), "8 MiB");
    }

    #[test]
    fn what_takes_a_client_and_a_server_is_told_by_an_argument() {
        assert_eq!(
            Measure::HalfRoundTrip.argument(),
            "--measure=half-round-trip"
        );
        assert_eq!(Measure::Memory.argument(), "");
    }
}
