use std::net::SocketAddr;

use anyhow::Result;
use serde::Serialize;

use super::{
    measure::{Measured, measure},
    options::{Options, Test},
    plan::{Plan, Point},
};
use crate::{live::Live, measure::Summary, process::Stop};

/// The results of the measured points.
#[derive(Debug, Default)]
pub(super) struct Results(Vec<(Point, Result<Measured, String>)>);

/// A point as JSON. Its members are printed in this order.
#[derive(Debug, Serialize)]
pub(super) struct PointJson<'a> {
    test: &'static str,
    size: u64,
    connections: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_second: Option<f64>,
    /// The round-trip times in µs. `None` for a failed point and for tests other than latency.
    /// `Some(None)` if the test recorded no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_us: Option<Option<Summary>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl Results {
    pub(super) fn measure(
        plan: &Plan,
        peer: &[SocketAddr],
        options: &Options,
        live: &mut Live,
        stop: &Stop,
    ) -> Result<Self> {
        let mut this = Self::default();
        let all = plan.points().len();
        for point in plan.points() {
            if stop.is_requested() {
                break;
            }
            // After a failed point, skip the later points with the same transport and number of
            // connections, because they would probably fail too.
            let failed = this.0.iter().any(|(other, result)| {
                result.is_err()
                    && (other.carrier, other.connections) == (point.carrier, point.connections)
            });
            if failed {
                continue;
            }
            let number = this.0.len() + 1;
            live.now(format_args!("{number} of {all}: {point}"))?;
            let result = measure(point, peer, options, stop);
            if let Err(error) = &result {
                live.line(format_args!("{point}: {error:#}"))?;
            }
            // Discard a measurement that a signal has interrupted.
            if !stop.is_requested() {
                this.0
                    .push((*point, result.map_err(|error| format!("{error:#}"))));
            }
        }
        Ok(this)
    }

    /// Returns whether all points of the plan were measured.
    pub(super) fn is_whole(&self, plan: &Plan) -> bool {
        self.measured().count() == plan.points().len()
    }

    pub(super) fn measured(&self) -> impl Iterator<Item = (&Point, &Measured)> {
        let all = self.0.iter();
        all.filter_map(|(point, result)| Some((point, result.as_ref().ok()?)))
    }

    pub(super) fn of(&self, point: &Point) -> Option<&Measured> {
        let mut measured = self.measured();
        measured
            .find(|(other, _)| *other == point)
            .map(|(_, measured)| measured)
    }

    #[cfg(test)]
    pub(super) fn from(all: Vec<(Point, Measured)>) -> Self {
        Self(
            all.into_iter()
                .map(|(point, measured)| (point, Ok(measured)))
                .collect(),
        )
    }

    pub(super) fn to_json(&self) -> Vec<PointJson<'_>> {
        self.0
            .iter()
            .map(|(point, result)| {
                let measured = result.as_ref().ok();
                let rate = measured.map(|it| it.messages_per_second);
                let times = measured.filter(|_| point.test == Test::Latency);
                PointJson {
                    test: point.test.name(),
                    size: point.size.0,
                    connections: point.connections,
                    transport: measured.map(|it| it.transport.as_str()),
                    messages: measured.map(|it| it.messages),
                    messages_per_second: rate,
                    bytes_per_second: rate.map(|rate| rate * point.size.0 as f64),
                    round_trip_us: times.map(|it| it.times.summary()),
                    error: result.as_ref().err().map(String::as_str),
                }
            })
            .collect()
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            test,
            size,
            connections,
            carrier,
        } = self;
        let plural = if *connections == 1 { "" } else { "s" };
        write!(
            f,
            "{} of {size} bytes over {}, {connections} connection{plural}",
            test.name(),
            carrier.name()
        )
    }
}
