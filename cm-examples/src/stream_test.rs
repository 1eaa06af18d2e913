//! The tests of a byte stream, and the format of their results.

use std::time::Duration;

use crate::Result;

/// The column headings for [`StreamTest::line`].
pub const HEADER: &str =
    "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer";

/// The transfer sizes in bytes if the option `-S` is not given.
const USUAL: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];

/// A test: transfers from the client to the server, and then from the server to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "programs set each field")]
pub struct StreamTest {
    /// The name in the output.
    pub name: String,
    /// The length of a transfer in bytes.
    pub size: usize,
    /// The number of consecutive transfers in one direction.
    pub count: u32,
    /// The number of times that the test performs the transfers in both directions.
    pub iterations: u32,
}

/// The tests that share one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "programs set each field")]
pub struct Plan {
    /// The tests, in order of execution.
    pub tests: Vec<StreamTest>,
    /// The maximum size of an inline send, in bytes.
    pub inline: u32,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two")]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Direction {
    /// Both directions, in the order of their transfers.
    pub const BOTH: [Self; 2] = [Self::ToServer, Self::ToClient];
}

impl Plan {
    /// Returns one plan for each connection. If `size` is a number, or if `count` or `iterations`
    /// is given, there is one plan with one test. Otherwise, there is one plan with latency tests
    /// and one plan with bandwidth tests, and these tests cover more sizes if `size` is `all`.
    ///
    /// # Errors
    ///
    /// Fails if the size is neither a positive number nor `all`.
    pub fn all(
        size: Option<&str>,
        count: Option<u32>,
        iterations: Option<u32>,
    ) -> Result<Vec<Self>> {
        let bytes = match size {
            None | Some("all") => None,
            Some(size) => match size.parse() {
                Ok(0) | Err(_) => {
                    let text = format!("-S must be a number of bytes or `all`: {size} is neither");
                    return Err(text.into());
                }
                Ok(bytes) => Some(bytes),
            },
        };
        Ok(if bytes.or(count).or(iterations).is_some() {
            vec![Self::custom(bytes, count, iterations)]
        } else {
            let all = size.is_some();
            vec![Self::latency(all), Self::bandwidth(all)]
        })
    }

    /// Returns a plan with one test. The defaults are a size of 1000 bytes, a count of 1000, and 1
    /// iteration.
    fn custom(size: Option<u32>, count: Option<u32>, iterations: Option<u32>) -> Self {
        let test = StreamTest {
            name: "custom".into(),
            size: size.unwrap_or(1000) as usize,
            count: count.unwrap_or(1000),
            iterations: iterations.unwrap_or(1),
        };
        Self {
            tests: vec![test],
            inline: 64,
        }
    }

    /// Returns the plan of the latency tests: single transfers, in several sizes.
    fn latency(all: bool) -> Self {
        let test = |size| StreamTest {
            name: format!("{}_lat", short(size as u64)),
            size,
            count: 1,
            iterations: usual_count(size),
        };
        Self {
            tests: sizes(all).into_iter().map(test).collect(),
            inline: 64,
        }
    }

    /// Returns the plan of the bandwidth tests: many consecutive transfers, in several sizes.
    fn bandwidth(all: bool) -> Self {
        let test = |size| StreamTest {
            name: format!("{}_bw", short(size as u64)),
            size,
            count: usual_count(size),
            iterations: 1,
        };
        Self {
            tests: sizes(all).into_iter().map(test).collect(),
            inline: 0,
        }
    }
}

impl StreamTest {
    /// Formats the result of the test as a line of output.
    #[must_use]
    pub fn line(&self, time: Duration) -> String {
        let transfers = f64::from(self.iterations) * f64::from(self.count) * 2.0;
        let bytes = transfers * self.size as f64;
        let seconds = time.as_secs_f64();
        format!(
            "{:<10}{:<8}{:<8}{:<8}{:<8}{seconds:>8.2}s{:>10.2}{:>11.2}",
            self.name,
            short(self.size as u64),
            short_count(self.count),
            short_count(self.iterations),
            // `bytes` is a product of integers, so the conversion discards no fraction.
            short(bytes as u64),
            bytes * 8.0 / 1e9 / seconds,
            seconds * 1e6 / transfers,
        )
    }
}

fn sizes(all: bool) -> Vec<usize> {
    if !all {
        return USUAL.into();
    }
    // The sizes are 64 bytes, each power of two from 128 bytes to 4 MiB, and 1.5 times each of
    // these powers.
    let mut sizes = vec![64];
    for exponent in 7..=22 {
        sizes.extend([1 << exponent, 3 << (exponent - 1)]);
    }
    sizes
}

/// Returns a number of transfers of this size that is sufficient for a measurement.
fn usual_count(size: usize) -> u32 {
    match size {
        0x10_0000.. => 100,
        0x1_0000.. => 1000,
        0x400.. => 10_000,
        _ => 100_000,
    }
}

fn short(bytes: u64) -> String {
    let (unit, letter) = match bytes {
        0x4000_0000.. => (1 << 30, "g"),
        0x10_0000.. => (1 << 20, "m"),
        0x400.. => (1 << 10, "k"),
        _ => (1, ""),
    };
    if bytes.is_multiple_of(unit) {
        format!("{}{letter}", bytes / unit)
    } else {
        format!("{:.1}{letter}", bytes as f64 / unit as f64)
    }
}

fn short_count(count: u32) -> String {
    match count {
        1_000_000.. => format!("{}m", count / 1_000_000),
        1000.. => format!("{}k", count / 1000),
        _ => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_33_sizes() {
        let sizes = sizes(true);
        assert_eq!(sizes.len(), 33);
        assert_eq!(sizes[..4], [64, 128, 192, 256]);
        assert_eq!(sizes[32], 6 << 20);
    }

    #[test]
    fn a_line_has_eight_columns() {
        let test = Plan::custom(Some(1 << 20), Some(100), None).tests.remove(0);
        let line = test.line(Duration::from_secs(1));
        assert_eq!(
            line,
            "custom    1m      100     1       200m        1.00s      1.68    5000.00"
        );
        assert_eq!(
            HEADER.split_whitespace().count(),
            line.split_whitespace().count()
        );
    }
}
