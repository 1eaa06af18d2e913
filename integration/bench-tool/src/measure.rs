use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A kind of measurement. Tables print the name in the `value` attribute.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
pub(crate) enum Measure {
    /// Half the time from a message to its answer
    #[value(name = "half round trip")]
    HalfRoundTrip,
    /// The time to send a message on each connection and then to receive all answers, divided by
    /// the number of messages in both directions
    #[value(name = "half round trip at once")]
    AtOnce,
    /// The rate of messages to a server, which answers only the final message
    #[value(name = "one way")]
    OneWay,
    /// The processor time per message of a process that receives a message every 2 ms
    #[value(name = "processor time")]
    Sparse,
    /// The time of an RDMA READ
    #[value(name = "RDMA READ")]
    Read,
    /// The rate of RDMA WRITEs
    #[value(name = "RDMA WRITE")]
    Write,
    /// The time to open and close a connection
    #[value(name = "connect and close")]
    Connect,
    /// The system calls of both ends to open and close a connection
    #[value(name = "system calls to connect and close")]
    SystemCalls,
    /// The memory of one end of an idle connection, without memory of the kernel
    #[value(name = "memory of an idle connection")]
    IdleMemory,
    /// The memory of one end of an idle connection, if the process may use huge pages
    #[value(name = "memory of an idle connection (huge pages)")]
    IdleHuge,
    /// The file descriptors of one end of an idle connection
    #[value(name = "descriptors of an idle connection")]
    IdleDescriptors,
    /// The share of a processor that both ends of idle connections and the kernel use
    #[value(name = "processor share of idle connections")]
    IdleWork,
    /// The instructions of a call, without those of the driver
    #[value(name = "instructions a call")]
    Call,
    /// The number of allocations of a call
    #[value(name = "allocations a call")]
    Allocations,
    /// The instructions that one process executes per round trip, without the kernel
    #[value(name = "instructions a round trip")]
    Loop,
    /// The largest step of a sweep: see [`crate::sweep::Sweep`]
    #[value(name = "worst step of 60 sizes")]
    Step,
}

impl Measure {
    /// Returns true if the measure is a rate. A larger rate is better.
    pub(crate) fn is_rate(self) -> bool {
        matches!(self, Self::OneWay | Self::Write)
    }

    /// Returns true if targets and the budget limit our figure itself. For other measures, they
    /// limit the ratio of our figure to the figure of another program.
    pub(crate) fn has_absolute_targets(self) -> bool {
        self == Self::SystemCalls || self.is_of_idle()
    }

    /// Returns true if the measure compares runs with different numbers of connections.
    pub(crate) fn is_of_connections(self) -> bool {
        self == Self::Connect || self.has_absolute_targets()
    }

    /// Returns true if the measure is a property of idle connections.
    pub(crate) fn is_of_idle(self) -> bool {
        matches!(
            self,
            Self::IdleMemory | Self::IdleHuge | Self::IdleDescriptors | Self::IdleWork
        )
    }

    /// Formats a figure with its unit.
    pub(crate) fn show(self, size: usize, figure: f64) -> String {
        match self {
            Self::HalfRoundTrip | Self::AtOnce | Self::Sparse | Self::Read | Self::Connect => {
                format!("{figure:.2} µs")
            }
            Self::OneWay | Self::Write if size < 4096 => {
                format!("{:.2} k/s", figure * 1e-3)
            }
            Self::OneWay | Self::Write => {
                format!("{:.2} MiB/s", figure * size as f64 / f64::from(1 << 20))
            }
            Self::IdleMemory | Self::IdleHuge => format!("{figure:.2} KiB"),
            Self::IdleWork => format!("{figure:.3} %"),
            Self::Call | Self::Loop | Self::SystemCalls => format!("{figure:.0}"),
            Self::IdleDescriptors | Self::Allocations | Self::Step => format!("{figure:.2}"),
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&value_name(self))
    }
}

/// Returns the name of a value, as used on the command line, in `rows.txt` and in tables.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Formats a size with its unit.
pub(crate) fn bytes(size: usize) -> String {
    match size {
        0..1024 => format!("{size} B"),
        _ if !size.is_multiple_of(1024) => format!("{size} B"),
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
        assert_eq!(bytes((64 << 10) + 1), "65537 B");
        assert_eq!(bytes(8 << 20), "8 MiB");
    }
}
