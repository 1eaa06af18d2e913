use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// An hour in nanoseconds. Longer times count as an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// Measured times, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Times(Histogram<u64>);

/// The statistics of times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) most: f64,
    pub(crate) mean: f64,
}

/// The number of times in a range, whose bounds are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) count: u64,
}

impl Times {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST, 3);
        let histogram = histogram.expect("from one on, and three digits, is allowed");
        Self(histogram)
    }

    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(nanos.max(1));
    }

    pub(crate) fn add_all(&mut self, others: &Self) {
        // The addition cannot fail, because both have the same bounds.
        let _ = self.0.add(&others.0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns `None` if nothing was measured.
    pub(crate) fn summary(&self) -> Option<Summary> {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        (!self.0.is_empty()).then(|| Summary {
            least: self.0.min() as f64 / 1e3,
            median: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            most: self.0.max() as f64 / 1e3,
            mean: self.0.mean() / 1e3,
        })
    }

    /// Returns the histogram, from the first to the last nonempty bucket. Each bucket is half as
    /// long again as the previous one.
    pub(crate) fn buckets(&self) -> Vec<Bucket> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut edges = vec![1_u64];
        while edges[edges.len() - 1] <= self.0.max() {
            let last = edges[edges.len() - 1];
            edges.push((last + last / 2).max(last + 1));
        }
        let mut buckets: Vec<Bucket> = edges
            .windows(2)
            .map(|edge| Bucket {
                from: edge[0] as f64 / 1e3,
                to: edge[1] as f64 / 1e3,
                count: 0,
            })
            .collect();
        for step in self.0.iter_recorded() {
            let value = step.value_iterated_to().min(self.0.max());
            let at = edges.partition_point(|edge| *edge <= value);
            if let Some(bucket) = buckets.get_mut(at - 1) {
                bucket.count += step.count_at_value();
            }
        }
        let has = |bucket: &Bucket| bucket.count > 0;
        let first = buckets.iter().position(has).unwrap_or(0);
        let last = buckets.iter().rposition(has).unwrap_or(0);
        buckets[first..=last].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(micros: &[u64]) -> Times {
        let mut times = Times::new();
        for micros in micros {
            times.add(Duration::from_micros(*micros));
        }
        times
    }

    #[test]
    fn summary_matches_the_measurements() {
        assert_eq!(Times::new().summary(), None);
        let summary = times(&[10, 20, 30, 40, 1000]).summary().unwrap();
        let near = |value: f64, expected: f64| (value - expected).abs() < expected / 500.0;
        assert!(
            near(summary.least, 10.0) && near(summary.most, 1000.0),
            "{summary:?}"
        );
        assert!(
            near(summary.median, 30.0) && near(summary.mean, 220.0),
            "{summary:?}"
        );
    }

    #[test]
    fn buckets_have_all_times_and_no_gaps() {
        let mut all = times(&[10, 11, 12, 300, 300]);
        all.add_all(&times(&[5]));
        let buckets = all.buckets();
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 6);
        assert!(buckets.windows(2).all(|pair| pair[0].to == pair[1].from));
        let (first, last) = (buckets[0], buckets[buckets.len() - 1]);
        assert!(first.from <= 5.0 && first.count == 1, "{first:?}");
        assert!(
            (last.from..last.to).contains(&300.0) && last.count == 2,
            "{last:?}"
        );
        assert!(Times::new().buckets().is_empty());
    }
}
