/// What one run of a program measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reading {
    /// Half round trips in microseconds. Not every program tells the median.
    Latency { median: Option<f64>, mean: f64 },
    /// Messages a second.
    Rate(f64),
}
