//! What programs print, as figures.

use crate::measure::Measure;

/// What one run of a program measured: microseconds, or messages a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    pub(crate) mean: f64,
    /// Not every program tells it.
    pub(crate) median: Option<f64>,
}

impl Reading {
    fn mean(mean: f64) -> Self {
        Self { mean, median: None }
    }
}

/// Of perftest. A line begins with size and count. Latency goes on with min, max, median and mean;
/// bandwidth with peak and mean in MiB/s and with million messages a second. Each of the last two
/// has digits enough where the other has not.
pub(crate) fn perftest(measure: Measure, size: usize, output: &str) -> Option<Reading> {
    let first = size.to_string();
    let mut lines = output.lines();
    let line = lines.find(|line| line.split_whitespace().next() == Some(&first))?;
    let figures = numbers(line)?;
    Some(if !measure.is_rate() {
        Reading {
            median: Some(*figures.get(4)?),
            mean: *figures.get(5)?,
        }
    } else if size < 16 << 10 {
        Reading::mean(figures.get(4)? * 1e6)
    } else {
        Reading::mean(figures.get(3)? * f64::from(1 << 20) / size as f64)
    })
}

/// Of rstream. The last word of the last line is microseconds a transfer, of both directions.
pub(crate) fn rstream(measure: Measure, output: &str) -> Option<Reading> {
    let line = output.lines().rfind(|line| line.starts_with("custom"))?;
    let mean: f64 = line.split_whitespace().next_back()?.parse().ok()?;
    Some(Reading::mean(if measure.is_rate() {
        1e6 / mean
    } else {
        mean
    }))
}

/// Of ucx_perftest with `-f`. A line has the count; median, mean and overall mean in microseconds;
/// two bandwidths; two rates.
pub(crate) fn ucx(measure: Measure, output: &str) -> Option<Reading> {
    let figures = output.lines().rev().find_map(numbers)?;
    Some(if measure.is_rate() {
        Reading::mean(*figures.get(7)?)
    } else {
        Reading {
            median: Some(*figures.get(1)?),
            mean: *figures.get(3)?,
        }
    })
}

/// Of fi_pingpong. A line has the size, what was sent and acknowledged, bytes, seconds, bandwidth,
/// and microseconds a transfer.
pub(crate) fn libfabric(output: &str) -> Option<Reading> {
    let line = output
        .lines()
        .rfind(|line| line.ends_with(|c: char| c.is_ascii_digit()))?;
    let mean = line.split_whitespace().nth(6)?.parse().ok()?;
    Some(Reading::mean(mean))
}

/// Of qperf: `latency = 12.3 us`, or `bw = 12.3 MB/sec`, in millions of bytes.
pub(crate) fn qperf(measure: Measure, size: usize, output: &str) -> Option<Reading> {
    let name = if measure.is_rate() { "bw" } else { "latency" };
    let mut lines = output.lines().filter_map(|line| line.split_once('='));
    let (_, figure) = lines.find(|(key, _)| key.trim() == name)?;
    let mut words = figure.split_whitespace();
    let figure: f64 = words.next()?.parse().ok()?;
    let unit = match words.next()? {
        "ns" => 1e-3,
        "us" | "bytes/sec" => 1.0,
        "ms" | "KB/sec" => 1e3,
        "sec" | "MB/sec" => 1e6,
        "GB/sec" => 1e9,
        _ => return None,
    };
    let divisor = if measure.is_rate() { size as f64 } else { 1.0 };
    Some(Reading::mean(figure * unit / divisor))
}

/// Of ours: words such as `mean=14.25`.
pub(crate) fn ours(measure: Measure, output: &str) -> Option<Reading> {
    Some(if measure.is_rate() {
        Reading::mean(word(output, "rate")?)
    } else {
        Reading {
            median: word(output, "p50"),
            mean: word(output, "mean")?,
        }
    })
}

/// The figure in a word `name=figure`.
pub(crate) fn word(output: &str, name: &str) -> Option<f64> {
    output.split_whitespace().find_map(|word| {
        let (key, value) = word.split_once('=')?;
        value.parse().ok().filter(|_| key == name)
    })
}

/// A line of nothing but numbers, and at least five of them.
fn numbers(line: &str) -> Option<Vec<f64>> {
    let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    numbers.ok().filter(|numbers| numbers.len() >= 5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measure::{HalfRoundTrip, OneWay};

    fn latency(median: f64, mean: f64) -> Option<Reading> {
        let median = Some(median);
        Some(Reading { mean, median })
    }

    fn mean(mean: f64) -> Option<Reading> {
        Some(Reading::mean(mean))
    }

    #[test]
    fn figures_of_perftest() {
        let output = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                      99% percentile[usec]   99.9% percentile[usec] \n \
                      64      1000          12.54          23526.61      13.87    \t       829.72      \t1627.90\t\t5287.22 \t\t8031.47\n";
        assert_eq!(perftest(HalfRoundTrip, 64, output), latency(13.87, 829.72));
        let output = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                      1048576    60               147.93             103.50 \t\t   0.000104\n \
                      64         1000            3.36               1.53   \t\t   0.025137\n";
        assert_eq!(perftest(OneWay, 1 << 20, output), mean(103.5));
        assert_eq!(perftest(OneWay, 64, output), mean(25137.0));
        assert_eq!(perftest(OneWay, 128, output), None);
    }

    #[test]
    fn figures_of_rstream() {
        let output = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n\
                      custom    1m      40      1       80m         0.67s      1.00    8000.00\n";
        assert_eq!(rstream(OneWay, output), mean(125.0));
        assert_eq!(rstream(HalfRoundTrip, output), mean(8000.0));
    }

    #[test]
    fn figures_of_ucx() {
        let output = "+-----------+--------+\n\
                      1000     50.000   503.607  1344.429        0.12       0.05        1986         744\n";
        assert_eq!(ucx(HalfRoundTrip, output), latency(50.0, 1344.429));
        assert_eq!(ucx(OneWay, output), mean(744.0));
        assert_eq!(ucx(OneWay, "no endpoint\n"), None);
    }

    #[test]
    fn figures_of_libfabric_and_qperf() {
        let output = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      64      300     =300     37k         0.47s      0.08     790.47       0.00\n";
        assert_eq!(libfabric(output), mean(790.47));
        let output = "tcp_lat:\n    latency  =  3.21 ms\n";
        assert_eq!(qperf(HalfRoundTrip, 64, output), mean(3210.0));
        let output = "rc_bw:\n    bw  =  128 KB/sec\n";
        assert_eq!(qperf(OneWay, 64, output), mean(2000.0));
        assert_eq!(qperf(OneWay, 64, "failed to modify QP\n"), None);
    }

    #[test]
    fn figures_of_ours() {
        let output = "mean=14.250 min=12.000 p50=13.500 p99=20.000\n";
        assert_eq!(ours(HalfRoundTrip, output), latency(13.5, 14.25));
        assert_eq!(ours(OneWay, "rate=1000.5\n"), mean(1000.5));
        assert_eq!(ours(OneWay, "bench: no connection\n"), None);
    }
}
