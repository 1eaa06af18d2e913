use std::time::Duration;

use serde::Serialize;

/// One hour in nanoseconds. A longer time is recorded as one hour.
const LONGEST: u64 = 3_600_000_000_000;

/// The number of significant bits with which a time is recorded. The error is less than 0.1 %.
const BITS: u32 = 11;

/// Measured times, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    /// A histogram: the number of recorded times at each index that `index_of` returns. Times share
    /// an index if they have the same number of bits and the same first `BITS` bits.
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    least: u64,
    most: u64,
}

/// Statistics of measured times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) most: f64,
    pub(crate) mean: f64,
}

/// A bucket of a histogram: the number of recorded times that are at least `from` and less than
/// `to`. Both bounds are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Bucket {
    #[serde(rename = "from_us")]
    pub(crate) from: f64,
    #[serde(rename = "to_us")]
    pub(crate) to: f64,
    pub(crate) count: u64,
}

impl Times {
    pub(crate) fn new() -> Self {
        Self {
            counts: Vec::new(),
            count: 0,
            sum: 0,
            least: LONGEST,
            most: 0,
        }
    }

    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(LONGEST);
        let nanos = nanos.clamp(1, LONGEST);
        let index = index_of(nanos);
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.count += 1;
        self.sum += u128::from(nanos);
        self.least = self.least.min(nanos);
        self.most = self.most.max(nanos);
    }

    pub(crate) fn add_all(&mut self, others: &Self) {
        let len = self.counts.len().max(others.counts.len());
        self.counts.resize(len, 0);
        for (count, other) in self.counts.iter_mut().zip(&others.counts) {
            *count += other;
        }
        self.count += others.count;
        self.sum += others.sum;
        self.least = self.least.min(others.least);
        self.most = self.most.max(others.most);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the statistics, or `None` if no time was recorded.
    pub(crate) fn summary(&self) -> Option<Summary> {
        (self.count > 0).then(|| Summary {
            least: self.least as f64 / 1e3,
            median: self.at(0.5) as f64 / 1e3,
            p99: self.at(0.99) as f64 / 1e3,
            p999: self.at(0.999) as f64 / 1e3,
            most: self.most as f64 / 1e3,
            mean: self.sum as f64 / self.count as f64 / 1e3,
        })
    }

    /// Returns a quantile of the measured times, in nanoseconds. For example, `at(0.99)` is the
    /// time that 99 % of the measured times do not exceed.
    fn at(&self, quantile: f64) -> u64 {
        let rank = (quantile * self.count as f64).ceil() as u64;
        let mut below = 0;
        for (time, count) in self.recorded() {
            below += count;
            if below >= rank {
                return time;
            }
        }
        self.most
    }

    /// Returns the recorded times in ascending order, each with the number of its occurrences.
    fn recorded(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.counts.iter().enumerate();
        let used = all.filter(|(_, count)| **count > 0);
        used.map(|(index, count)| (greatest_of(index).min(self.most), *count))
    }

    /// Returns the times as a histogram without empty buckets at either end. The upper bound of
    /// each bucket is about 1.5 times its lower bound.
    pub(crate) fn buckets(&self) -> Vec<Bucket> {
        if self.count == 0 {
            return Vec::new();
        }
        let mut edges = vec![1_u64];
        while edges[edges.len() - 1] <= self.most {
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
        for (time, count) in self.recorded() {
            let at = edges.partition_point(|edge| *edge <= time);
            if let Some(bucket) = buckets.get_mut(at - 1) {
                bucket.count += count;
            }
        }
        let has = |bucket: &Bucket| bucket.count > 0;
        let first = buckets.iter().position(has).unwrap_or(0);
        let last = buckets.iter().rposition(has).unwrap_or(0);
        buckets[first..=last].to_vec()
    }
}

/// Returns the histogram index of a time. A time below 2^BITS is its own index. For longer times,
/// each additional bit adds 2^(BITS - 1) indices.
fn index_of(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(BITS);
    ((u64::from(shift) << (BITS - 1)) + (nanos >> shift)) as usize
}

/// Returns the greatest time with this index.
fn greatest_of(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index >> (BITS - 1)).saturating_sub(1);
    let first = index - (shift << (BITS - 1));
    ((first + 1) << shift) - 1
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
    fn indices_have_no_gaps_and_small_errors() {
        let (mut index, mut time) = (1, 1);
        while time <= LONGEST {
            let greatest = greatest_of(index);
            assert_eq!((index_of(time), index_of(greatest)), (index, index));
            assert!((greatest - time) * 1000 < time, "{time} to {greatest}");
            (index, time) = (index + 1, greatest + 1);
        }
        assert!(index < 40_000, "{index}");
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let mut times = Times::new();
        let hour = Duration::from_secs(3600);
        for time in (1..=1000).map(Duration::from_nanos).chain([hour * 2]) {
            times.add(time);
        }
        let summary = times.summary().unwrap();
        assert_eq!((summary.least, summary.median), (0.001, 0.501));
        assert_eq!((summary.p99, summary.p999), (0.991, 1.0));
        assert_eq!(summary.most, hour.as_secs_f64() * 1e6);
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
