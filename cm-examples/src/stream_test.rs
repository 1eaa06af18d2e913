//! The measurements of a byte stream, and their output.

use std::time::Duration;

use crate::Result;

/// The columns of [`StreamTest::line`].
pub const HEADER: &str =
    "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer";

/// The sizes that are tested by default, in bytes.
const USUAL: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];

/// A test: transfers one way, then back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "made by programs, field by field"
)]
pub struct StreamTest {
    /// Its name.
    pub name: String,
    /// The length of a transfer in bytes.
    pub size: usize,
    /// The number of transfers in a row.
    pub count: u32,
    /// The number of repetitions in both directions.
    pub iterations: u32,
}

/// The tests of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "made by programs, field by field"
)]
pub struct Plan {
    /// The tests, in order.
    pub tests: Vec<StreamTest>,
    /// Bytes that the connection should send inline.
    pub inline: u32,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two")]
pub enum Way {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Way {
    /// Both, in the order of the transfers.
    pub const BOTH: [Self; 2] = [Self::ToServer, Self::ToClient];
}

impl Plan {
    /// Returns the tests, connection by connection: one test if an option is given, otherwise the
    /// usual ones, or those of more sizes if the size is `all`.
    ///
    /// # Errors
    ///
    /// If the size is not a number.
    pub fn all(
        size: Option<&str>,
        count: Option<u32>,
        iterations: Option<u32>,
    ) -> Result<Vec<Self>> {
        let bytes = match size {
            None | Some("all") => None,
            Some(size) => match size.parse() {
                Ok(0) | Err(_) => {
                    let text = format!("-S is a number of bytes, or all: {size} is neither");
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

    /// Returns one test; omitted values are 1000.
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

    /// Returns the tests of latency: one transfer at a time, of several sizes.
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

    /// Returns the tests of bandwidth: many transfers in a row, of several sizes.
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
    /// Returns the result as a line.
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
            // The number is below 2^53.
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
    // Powers of two, and from 128 bytes on also the middle between two of them.
    let mut sizes = vec![64];
    for exponent in 7..=22 {
        sizes.extend([1 << exponent, 3 << (exponent - 1)]);
    }
    sizes
}

/// Returns a number of transfers of this size that takes a while.
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
