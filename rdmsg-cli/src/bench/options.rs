use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::{
    arguments::{Carrier, positive},
    measure::Size,
};

/// Measures latency, bandwidth and message rate to `rdmsg serve`
///
/// Each test runs over RDMA and over TCP, with each size and each number of connections. A table
/// and a plot in text mode show both transports side by side. If this host has no RDMA device and
/// --transport is not given, the tests run only over TCP, and a message on stderr says so.
///
///   latency     sends one message at a time on each connection and waits until it comes back;
///               measures the round-trip time
///   bandwidth   sends messages to the peer as fast as the window permits; measures bytes per
///               second
///   rate        like bandwidth, but with short messages; measures messages per second
///
/// Rates are the sum over all connections. Each measurement lasts --seconds. A warm-up of a tenth
/// of that time precedes it and is not counted. The results apply only to this program, these two
/// hosts and their current load.
///
/// With --report NAME, bench also writes the files NAME.json and NAME.md, which you can give to
/// others. They contain the device, firmware, provider and kernel of both hosts, the settings, the
/// findings of `rdmsg doctor`, and the results. They contain no IP addresses, GIDs, GUIDs, host
/// names, user names or paths of the home directory: `(address)`, `(host)`, `(user)` and `(home)`
/// replace them. If one of the files already exists, bench fails.
///
/// The exit status is 0 if everything was measured, 1 if the table is incomplete, and 2 for an
/// invalid command line. On an interrupt (ctrl-c), bench stops and prints the results so far.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  rdmsg bench 10.8.0.1                               all tests, RDMA and TCP
  rdmsg bench 10.8.0.1 --test latency --sizes 64,4K,64K --transport rdma
  rdmsg bench 10.8.0.1 --test rate --connections 1,2,4,8
  rdmsg bench 10.8.0.1 --report results              results.json and results.md as well
  rdmsg bench 10.8.0.1 --json | jq '.points[] | {test, transport, size, bytes_per_second}'"
)]
pub(crate) struct Options {
    /// The host, as HOST or HOST:PORT, on which `rdmsg serve` runs [default port: 7471]
    pub(super) peer: String,

    /// The tests to run.
    #[arg(long = "test", value_enum, value_delimiter = ',',
        default_values_t = [Test::Latency, Test::Bandwidth, Test::Rate])]
    pub(super) tests: Vec<Test>,

    /// The message sizes in bytes, such as 64, 4K or 1M [default: sizes that suit each test]
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    pub(super) sizes: Vec<Size>,

    /// The numbers of concurrent connections; each number is measured separately.
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1],
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) connections: Vec<u16>,

    /// The transports to compare [default: rdma,tcp if this host has an RDMA device, otherwise tcp]
    #[arg(
        long = "transport",
        value_enum,
        ignore_case = true,
        value_delimiter = ',',
        value_name = "CARRIERS",
        hide_default_value = true
    )]
    pub(super) carriers: Vec<Carrier>,

    /// The duration of each measurement.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = positive)]
    pub(super) seconds: Duration,

    /// The time limit for connecting, and for each message.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = positive)]
    pub(super) timeout: Duration,

    /// Print all results as JSON, and nothing else.
    #[arg(long)]
    pub(super) json: bool,

    /// Also write the results to NAME.json and NAME.md, without private data.
    #[arg(long, value_name = "NAME")]
    pub(super) report: Option<PathBuf>,
}

/// A kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Test {
    Latency,
    Bandwidth,
    Rate,
}

impl Options {
    /// Returns the transports to compare. The default is RDMA and TCP, or only TCP if this host has
    /// no RDMA device.
    pub(super) fn carriers(&self, has_device: bool) -> Vec<Carrier> {
        match (&*self.carriers, has_device) {
            ([], true) => vec![Carrier::Rdma, Carrier::Tcp],
            ([], false) => vec![Carrier::Tcp],
            (chosen, _) => chosen.to_vec(),
        }
    }

    /// Returns true if the command line selects no transport. The default transports are then
    /// measured.
    pub(super) fn leaves_carriers_open(&self) -> bool {
        self.carriers.is_empty()
    }
}

impl Test {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Rate => "rate",
        }
    }

    /// Returns the message sizes that the test uses by default.
    pub(super) fn sizes(self) -> Vec<Size> {
        let sizes: &[u64] = match self {
            Self::Latency => &[64, 512, 4096, 16 << 10, 64 << 10],
            Self::Bandwidth => &[4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            Self::Rate => &[64],
        };
        sizes.iter().copied().map(Size).collect()
    }
}
