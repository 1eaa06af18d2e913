//! The sweep measures half a round trip of 60 message sizes, to find a size that costs more than
//! its neighbours. One connection carries messages of all sizes, one size after the other.

use serde::{Deserialize, Serialize};

use crate::{
    measure::Measure,
    traffic::{Reading, Traffic},
};

/// The message sizes in bytes, in ascending order. They are below, at and above the sizes at which
/// a cost can change:
///
/// * the inline size
/// * multiples of the packet size, which is 1024 B, with and without the header of 16 B
/// * the eager size (16 KiB over RDMA, 64 KiB over TCP) and its multiples
/// * the longest message in frames (48 KiB over RDMA, 1 MiB over TCP)
/// * the length that one RDMA READ transfers (64 KiB to 1 MiB)
/// * the length of a TCP segment over loopback (64 KiB)
#[rustfmt::skip]
const SIZES: [usize; 60] = [
    1, 64, 112, 113, 128, 240, 241, 256, 257, 512, 768,
    1008, 1009, 1024, 1025, 2032, 2033, 2048, 2049, 3056, 3057, 3072, 3073,
    4080, 4081, 4096, 4097, 6144, 8176, 8177, 8192, 8193, 12_288,
    16_368, 16_369, 16_384, 16_385, 16_400, 20_480, 24_576, 32_768, 32_769, 40_960,
    49_152, 49_153, 57_344, 65_520, 65_535, 65_536, 65_537, 98_304, 131_072, 131_073,
    262_144, 524_288, 1_048_576, 1_048_577, 2_097_152, 4_194_304, 4_194_305,
];

/// The maximum permitted step of rdmsg, which is also the target in `rows.txt`.
const BOUND: f64 = 1.10;

/// The cost of each size, measured with one program.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Sweep {
    /// The name of the program.
    pub(crate) name: String,
    /// The first sizes of [`SIZES`], each with the duration of half a round trip in µs.
    pub(crate) costs: Vec<(usize, f64)>,
}

impl Sweep {
    /// Returns a sweep with the readings of the first sizes.
    pub(crate) fn new(name: String, readings: &[Reading]) -> Self {
        let costs = readings.iter().map(|reading| reading.mean);
        let costs = SIZES.into_iter().zip(costs).collect();
        Self { name, costs }
    }

    /// Returns the step of each size: the larger of two ratios. These are the cost per byte divided
    /// by the cost per byte of the next smaller size, and the cost divided by the cost of the next
    /// larger size.
    fn steps(&self) -> Vec<f64> {
        let mut steps = vec![0.0; self.costs.len()];
        for (place, pair) in self.costs.windows(2).enumerate() {
            let [(small, of_small), (large, of_large)] = [pair[0], pair[1]];
            steps[place] = f64::max(steps[place], of_small / of_large);
            steps[place + 1] = of_large * small as f64 / (of_small * large as f64);
        }
        steps
    }

    /// Returns the largest step.
    pub(crate) fn worst(&self) -> f64 {
        self.steps().into_iter().fold(0.0, f64::max)
    }
}

/// Returns the lines of a table: the column headings, and then one line per size, with the cost and
/// the step of each program. A star marks a step beyond the bound. If `only_beyond` is set, returns
/// only the sizes at which rdmsg is beyond the bound.
pub(crate) fn table(sweeps: &[Sweep], only_beyond: bool) -> Vec<Vec<String>> {
    let mut title = vec!["bytes".to_owned()];
    title.extend(sweeps.iter().flat_map(|sweep| {
        let name = sweep.name.replace("rdmsg event", "rdmsg");
        [format!("{name}, µs"), "step".to_owned()]
    }));
    let mut lines = vec![title];
    let steps: Vec<_> = sweeps.iter().map(Sweep::steps).collect();
    for (place, size) in SIZES.iter().enumerate() {
        let mut cells = vec![size.to_string()];
        let mut is_beyond = false;
        for (sweep, steps) in sweeps.iter().zip(&steps) {
            let Some((&(_, cost), step)) = sweep.costs.get(place).zip(steps.get(place)) else {
                cells.extend([String::new(), String::new()]);
                continue;
            };
            let mark = if *step > BOUND { " *" } else { "" };
            is_beyond |= *step > BOUND && sweep.name.starts_with("rdmsg");
            cells.extend([format!("{cost:.1}"), format!("{step:.2}{mark}")]);
        }
        if is_beyond || !only_beyond {
            lines.push(cells);
        }
    }
    lines
}

/// Returns the traffic of each size, up to `traffic.size`, or of all sizes if this is 0. If the
/// traffic is not a sweep, returns it unchanged.
///
/// The receiver sends a grant for further messages after every 16 messages. For sizes up to 64 KiB,
/// this grant affects the mean, so the number of measured round trips is a multiple of 16. Over
/// TCP, the costs are lower but vary more, so the number of measured round trips is four times
/// higher.
pub(crate) fn parts(traffic: &Traffic) -> Vec<Traffic> {
    if traffic.measure != Measure::Step {
        return vec![traffic.clone()];
    }
    let sizes = SIZES.into_iter();
    let sizes = sizes.filter(|size| traffic.size == 0 || *size <= traffic.size);
    let more = if traffic.manner.is_over_tcp() { 4 } else { 1 };
    let part = |size| {
        let (warm_up, count) = match size {
            1 => (64, 32),
            2..=0x1001 => (2, 32),
            0x1002..=0x1_0001 => (2, 16),
            0x1_0002..=0x8_0000 => (2, 8),
            0x8_0001..=0x10_0001 => (2, 4),
            _ => (1, 2),
        };
        Traffic {
            size,
            warm_up,
            count: count * more,
            ..traffic.clone()
        }
    };
    sizes.map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(costs: &[(usize, f64)]) -> Sweep {
        Sweep {
            name: "rdmsg event".to_owned(),
            costs: costs.to_vec(),
        }
    }

    #[test]
    fn sizes_ascend_around_boundaries() {
        assert!(SIZES.is_sorted_by(|a, b| a < b));
        for boundary in [1024, 4096, 16 << 10, 48 << 10, 64 << 10, 1 << 20, 4 << 20] {
            for size in [boundary, boundary + 1] {
                assert!(SIZES.contains(&size), "{size}");
            }
        }
    }

    #[test]
    fn steps_compare_each_size_with_both_neighbours() {
        // 200 B have the same cost per byte as 100 B. 300 B cost less than 201 B.
        let sweep = sweep(&[(100, 10.0), (200, 20.0), (201, 30.0), (300, 25.0)]);
        let rounded = sweep.steps().into_iter().map(|step| (step * 1e3).round());
        let expected = [10.0 / 20.0, 1.0, 30.0 / 20.1, 25.0 / 30.0 * 201.0 / 300.0];
        let expected = expected.map(|step: f64| (step * 1e3).round());
        assert_eq!(rounded.collect::<Vec<_>>(), expected);
        assert_eq!((sweep.worst() * 1e3).round(), 1493.0);
    }

    #[test]
    fn shorter_message_may_not_cost_more() {
        // Compared with the cost per byte of 100 B, the step is 2. Compared with the cost of 201 B,
        // the step is only 4/3.
        let dear = sweep(&[(100, 10.0), (200, 40.0), (201, 30.0)]);
        assert_eq!(dear.steps()[1], 2.0);
        let alone = sweep(&[(200, 40.0), (201, 30.0)]);
        assert!((alone.steps()[0] - 4.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn table_marks_steps_beyond_the_bound() {
        let costs: Vec<_> = SIZES.iter().map(|size| (*size, 20.0)).collect();
        let mut sweeps = [sweep(&costs), sweep(&costs[..40])];
        sweeps[1].name = "verbs".to_owned();
        sweeps[1].costs[30].1 *= 2.0;
        assert_eq!(table(&sweeps, true).len(), 1);
        sweeps[0].costs[30].1 *= 1.2;
        let beyond = table(&sweeps, true);
        let size = SIZES[30].to_string();
        assert_eq!(beyond[1], [&*size, "24.0", "1.20 *", "40.0", "2.00 *"]);
        let all = table(&sweeps, false);
        assert_eq!(all.len(), 61);
        assert_eq!(all[60][3..], ["", ""]);
    }
}
