use std::{fmt, time::Duration};

use hdrhistogram::Histogram;

/// The latencies of one run.
#[derive(Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// Creates an empty histogram of latencies of up to 60 s, with three significant digits.
    #[must_use]
    pub fn new() -> Self {
        Self(
            Histogram::new_with_bounds(1, 60_000_000_000, 3)
                .expect("the bounds are constant and valid"),
        )
    }

    /// Adds a latency. A latency above 60 s is recorded as 60 s.
    pub fn record(&mut self, latency: Duration) {
        self.0
            .saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        write!(
            f,
            "min {:.1}  p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1} µs",
            micros(self.0.min()),
            micros(self.0.value_at_quantile(0.5)),
            micros(self.0.value_at_quantile(0.9)),
            micros(self.0.value_at_quantile(0.99)),
            micros(self.0.value_at_quantile(0.999)),
            micros(self.0.max()),
        )
    }
}
