use super::{options::Test, results::Results};
use crate::{
    arguments::Carrier,
    measure::{Size, bytes_per_second, micros, per_second},
};

/// A plot of one or more series, with two logarithmic axes.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) across: XAxis,
    test: Test,
    pub(super) series: Vec<Series>,
}

/// The quantity on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XAxis {
    Sizes,
    Connections,
}

/// A line of points, ordered from left to right.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) carrier: Carrier,
    pub(super) points: Vec<(f64, f64)>,
}

/// The range of values on an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Plot {
    /// Returns a plot for each test that has a series of at least two points.
    pub(super) fn all(results: &Results) -> Vec<Self> {
        let tests = [Test::Latency, Test::Bandwidth, Test::Rate];
        let plots = tests.map(|test| Self::of_test(test, results));
        plots.into_iter().flatten().collect()
    }

    fn of_test(test: Test, results: &Results) -> Option<Self> {
        let of_test = || {
            results
                .measured()
                .filter(move |(point, _)| point.test == test)
        };
        let mut sizes: Vec<u64> = of_test().map(|(point, _)| point.size.0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        // If several message sizes were measured, the horizontal axis shows the sizes, with one
        // series for each combination of transport and number of connections. Otherwise the axis
        // shows the numbers of connections, with one series for each transport.
        let across = if sizes.len() > 1 {
            XAxis::Sizes
        } else {
            XAxis::Connections
        };
        let mut series: Vec<Series> = Vec::new();
        let mut connections: Vec<u16> = of_test().map(|(point, _)| point.connections).collect();
        connections.sort_unstable();
        connections.dedup();
        for (point, measured) in of_test() {
            let name = match across {
                XAxis::Sizes if connections.len() > 1 => {
                    let plural = if point.connections == 1 { "" } else { "s" };
                    format!(
                        "{}, {} connection{plural}",
                        measured.transport, point.connections
                    )
                }
                XAxis::Sizes | XAxis::Connections => measured.transport.clone(),
            };
            let x = match across {
                XAxis::Sizes => point.size.0.max(1) as f64,
                XAxis::Connections => point.connections.into(),
            };
            let y = match test {
                Test::Latency => measured.times.summary()?.median,
                Test::Bandwidth => measured.messages_per_second * point.size.0 as f64,
                Test::Rate => measured.messages_per_second,
            };
            if !y.is_normal() {
                continue;
            }
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((x, y)),
                None => series.push(Series {
                    name,
                    carrier: point.carrier,
                    points: vec![(x, y)],
                }),
            }
        }
        for series in &mut series {
            series
                .points
                .sort_by(|one, other| one.0.total_cmp(&other.0));
        }
        let what = match test {
            Test::Latency => "median round trip",
            Test::Bandwidth => "bandwidth in one direction",
            Test::Rate => "messages per second in one direction",
        };
        let of = match across {
            XAxis::Sizes => String::new(),
            XAxis::Connections => {
                let size = Size(sizes.first().copied().unwrap_or(0));
                format!(", messages of {}", size.with_unit())
            }
        };
        let has_line = series.iter().any(|series| series.points.len() > 1);
        has_line.then(|| Self {
            title: format!("{what}{of}"),
            across,
            test,
            series,
        })
    }

    /// Returns the label of the horizontal axis.
    pub(super) fn label_across(&self) -> &'static str {
        match self.across {
            XAxis::Sizes => "size of a message",
            XAxis::Connections => "number of connections",
        }
    }

    /// Returns the ticks of the horizontal axis.
    pub(super) fn ticks_across(&self) -> Vec<(f64, String)> {
        let mut all: Vec<f64> = self.points().map(|(x, _)| x).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        let label = |x: f64| match self.across {
            XAxis::Sizes => Size(x as u64).with_unit(),
            XAxis::Connections => format!("{x}"),
        };
        all.into_iter().map(|x| (x, label(x))).collect()
    }

    /// Returns the ticks of the vertical axis: 1, 2 and 5 times each power of ten in the range, or
    /// only the powers of ten if the range is wide. For bandwidths, the ticks are powers of 2, or
    /// powers of 8 if the range is wide.
    pub(super) fn ticks_up(&self) -> Vec<(f64, String)> {
        let Range { least, most } = self.y_range();
        if self.test == Test::Bandwidth {
            let step: i32 = if most / least < 1024.0 { 1 } else { 3 };
            let powers = (0..=50 / step).map(|number| 2_f64.powi(step * number));
            return powers
                .filter(|y| (least..=most).contains(y))
                .map(|y| (y, self.label(y)))
                .collect();
        }
        let decades = (most / least).log10();
        let steps: &[f64] = if decades < 2.5 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let first = least.log10().floor() as i32;
        let last = most.log10().ceil() as i32;
        let powers = (first..=last).map(|power| 10_f64.powi(power));
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * power));
        all.filter(|y| (least..=most).contains(y))
            .map(|y| (y, self.label(y)))
            .collect()
    }

    fn label(&self, y: f64) -> String {
        match self.test {
            Test::Latency => micros(y),
            Test::Bandwidth => bytes_per_second(y),
            Test::Rate => per_second(y),
        }
    }

    pub(super) fn x_range(&self) -> Range {
        Range::of(self.points().map(|(x, _)| x), 1.0)
    }

    /// Returns the range of the vertical axis, with some space above and below the points.
    pub(super) fn y_range(&self) -> Range {
        Range::of(self.points().map(|(_, y)| y), 1.3)
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.series
            .iter()
            .flat_map(|series| series.points.iter().copied())
    }
}

impl Range {
    fn of(values: impl Iterator<Item = f64>, room: f64) -> Self {
        let start = Self {
            least: f64::INFINITY,
            most: 0.0,
        };
        let range = values.fold(start, |range, value| Self {
            least: range.least.min(value),
            most: range.most.max(value),
        });
        Self {
            least: range.least / room,
            most: range.most * room,
        }
    }

    /// Returns the position of a value in the range on a logarithmic scale, from 0 to 1.
    pub(super) fn position(self, value: f64) -> f64 {
        let whole = (self.most / self.least).ln();
        if whole > 0.0 {
            (value / self.least).ln() / whole
        } else {
            0.5
        }
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::{
        super::{measure::Measured, plan::Point},
        *,
    };
    use crate::measure::Times;

    /// Returns plots of invented results. The bandwidth doubles each time the message size
    /// quadruples, and RDMA has twice the bandwidth of TCP.
    pub(in super::super) fn plots() -> Vec<Plot> {
        let mut all = Vec::new();
        for (carrier, factor) in [(Carrier::Rdma, 2.0), (Carrier::Tcp, 1.0)] {
            for (number, size) in [4096_u64, 16_384, 65_536].into_iter().enumerate() {
                let point = Point {
                    test: Test::Bandwidth,
                    size: Size(size),
                    connections: 1,
                    carrier,
                };
                let rate = factor * 1e8 * 2_f64.powi(number as i32) / size as f64;
                let measured = Measured {
                    transport: carrier.name().into(),
                    messages: 1,
                    messages_per_second: rate,
                    times: Times::new(),
                };
                all.push((point, measured));
            }
        }
        Plot::all(&Results::from(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_line_per_transport_and_round_ticks() {
        let plots = testing::plots();
        assert_eq!(
            plots.len(),
            1,
            "only the bandwidth was measured, so only its plot must exist"
        );
        let plot = &plots[0];
        let names: Vec<&str> = plot.series.iter().map(|series| &*series.name).collect();
        assert_eq!(names, ["RDMA", "TCP"]);
        assert_eq!(plot.across, XAxis::Sizes);
        let labels = |ticks: Vec<(f64, String)>| -> Vec<String> {
            ticks.into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(labels(plot.ticks_across()), ["4 KiB", "16 KiB", "64 KiB"]);
        assert_eq!(
            labels(plot.ticks_up()),
            ["128 MiB/s", "256 MiB/s", "512 MiB/s"]
        );
        assert!((plot.x_range().position(16_384.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_single_point_is_no_plot() {
        assert!(Plot::all(&Results::default()).is_empty());
        let range = Range {
            least: 3.0,
            most: 3.0,
        };
        assert!((range.position(3.0) - 0.5).abs() < 1e-9);
    }
}
