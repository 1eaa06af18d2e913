use std::fmt;

use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Measure {
    /// Half the time of a message and its answer
    HalfRoundTrip,
    /// The rate of messages to a server, which answers the last one
    OneWay,
    /// The processor time of a process that receives a message every 2 ms, for each message
    Sparse,
    /// The time of an RDMA READ
    Read,
    /// The rate of RDMA WRITEs
    Write,
    /// The time to open a connection and to close it
    Connect,
    /// What a call executes above the driver
    Call,
    /// What a call allocates
    Allocations,
    /// What one end executes for a round trip in its process, the kernel apart
    Loop,
}

impl Measure {
    /// Whether more is better.
    pub(crate) fn is_rate(self) -> bool {
        self.is_one_way() || self == Self::Write
    }

    /// Whether messages go to a server, and it answers the last one.
    pub(crate) fn is_one_way(self) -> bool {
        self == Self::OneWay
    }

    /// A figure with its unit.
    pub(crate) fn show(self, size: usize, figure: f64) -> String {
        match self {
            Self::HalfRoundTrip | Self::Sparse | Self::Read | Self::Connect => {
                format!("{figure:.2} µs")
            }
            Self::OneWay | Self::Write if size < 4096 => {
                format!("{:.2} k/s", figure * 1e-3)
            }
            Self::OneWay | Self::Write => {
                format!("{:.2} MiB/s", figure * size as f64 / f64::from(1 << 20))
            }
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
            Self::Sparse => "processor time",
            Self::Read => "RDMA READ",
            Self::Write => "RDMA WRITE",
            Self::Connect => "connect and close",
            Self::Call => "instructions a call",
            Self::Allocations => "allocations a call",
            Self::Loop => "instructions a round trip",
        })
    }
}

/// A size for people.
pub(crate) fn bytes(size: usize) -> String {
    match size {
        0..1024 => format!("{size} B"),
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
}
