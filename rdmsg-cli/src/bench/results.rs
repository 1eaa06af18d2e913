use std::net::SocketAddr;

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    measure::{Measured, measure},
    options::{Options, Test},
    plan::{Plan, Point},
};
use crate::{live::Live, measure::Size, stop::Stop};

/// The results of the points that were measured.
#[derive(Debug, Default)]
pub(super) struct Results(Vec<(Point, Result<Measured, String>)>);

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
            // If connections over a transport failed, further ones would fail as well.
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
            // A measurement that was cut short is discarded.
            if !stop.is_requested() {
                this.0
                    .push((*point, result.map_err(|error| format!("{error:#}"))));
            }
        }
        Ok(this)
    }

    /// Whether all of the plan was measured.
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

    pub(super) fn to_json(&self) -> Vec<Value> {
        self.0
            .iter()
            .map(|(point, result)| {
                let Size(size) = point.size;
                let mut value = json!({
                    "test": point.test.name(),
                    "size": size,
                    "connections": point.connections,
                });
                match result {
                    Ok(measured) => {
                        let rate = measured.messages_per_second;
                        value["transport"] = measured.transport.as_str().into();
                        value["messages"] = measured.messages.into();
                        value["messages_per_second"] = rate.into();
                        value["bytes_per_second"] = (rate * size as f64).into();
                        if point.test == Test::Latency {
                            value["round_trip_us"] = json!(measured.times.summary());
                        }
                    }
                    Err(error) => value["error"] = error.as_str().into(),
                }
                value
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
