use super::options::{Options, Test};
use crate::{arguments::Carrier, measure::Size};

/// The points to measure, in order. Points that are compared with each other are adjacent.
#[derive(Clone, Debug)]
pub(super) struct Plan(Vec<Point>);

/// One combination of test, message size, number of connections and transport to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) test: Test,
    pub(super) size: Size,
    pub(super) connections: u16,
    pub(super) carrier: Carrier,
}

impl Plan {
    /// Creates the plan for these options. `has_device` is true if this host has an RDMA device.
    pub(super) fn new(options: &Options, has_device: bool) -> Self {
        let carriers = options.carriers(has_device);
        let mut points = Vec::new();
        for &test in &options.tests {
            let own = test.sizes();
            let sizes = if options.sizes.is_empty() {
                &own
            } else {
                &options.sizes
            };
            for &connections in &options.connections {
                for &size in sizes {
                    points.extend(carriers.iter().map(|&carrier| Point {
                        test,
                        size,
                        connections,
                        carrier,
                    }));
                }
            }
        }
        Self(points)
    }

    pub(super) fn points(&self) -> &[Point] {
        &self.0
    }

    /// Returns the distinct transports of the plan.
    pub(super) fn carriers(&self) -> Vec<Carrier> {
        let mut carriers = Vec::new();
        for point in &self.0 {
            if !carriers.contains(&point.carrier) {
                carriers.push(point.carrier);
            }
        }
        carriers
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{Cli, Command};

    fn plan(line: &str, has_device: bool) -> Plan {
        let cli = Cli::parse_from(
            ["rdmsg", "bench", "host"]
                .into_iter()
                .chain(line.split(' ')),
        );
        let Command::Bench(options) = cli.command else {
            panic!("{line}")
        };
        Plan::new(&options, has_device)
    }

    #[test]
    fn compared_tests_are_measured_in_sequence() {
        let plan = plan("--test latency,rate --sizes 64,4K --connections 1,2", true);
        let points = plan.points();
        assert_eq!(points.len(), 2 * 2 * 2 * 2);
        for pair in points.chunks(2) {
            assert_eq!(pair[0].carrier, Carrier::Rdma);
            assert_eq!(
                pair[1],
                Point {
                    carrier: Carrier::Tcp,
                    ..pair[0]
                }
            );
        }
        assert_eq!(plan.carriers(), [Carrier::Rdma, Carrier::Tcp]);
    }

    #[test]
    fn without_sizes_each_test_has_its_own() {
        let plan = plan("--test latency,rate --transport tcp", true);
        let sizes = Test::Latency.sizes().len() + Test::Rate.sizes().len();
        assert_eq!(plan.points().len(), sizes);
    }

    #[test]
    fn rdma_is_measured_without_device_only_on_request() {
        assert_eq!(plan("--test rate", false).carriers(), [Carrier::Tcp]);
        let requested = plan("--test rate --transport rdma,tcp", false);
        assert_eq!(requested.carriers(), [Carrier::Rdma, Carrier::Tcp]);
    }
}
