use fastrand::Rng;
use toolbox::{Side, check, fill, random};

use crate::plan::Plan;

/// The longest message there is.
pub(crate) const LONGEST: u64 = 8 << 20;

/// What one side of a connection sends: the lengths and bytes of its messages, one after the other.
/// The receiver makes them anew to compare, so a message that is lost, repeated, moved, cut or
/// changed shows.
#[derive(Debug)]
pub(crate) struct Content {
    seed: u64,
    lengths: Rng,
    /// The longest message that the receiver takes in bytes.
    limit: u64,
    /// The eager size: what happens around it is different on each side of it.
    eager: u64,
    /// How many messages there were so far.
    count: u64,
}

/// One message, as it has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    seed: u64,
    pub(crate) number: u64,
    pub(crate) len: usize,
}

impl Content {
    pub(crate) fn new(seed: u64, plan: &Plan, from: Side) -> Self {
        let receiver = &plan.half(from.other()).config;
        let mut rng = random(&[seed, plan.id, from as u64, u64::from(b'c')]);
        Self {
            seed: rng.u64(..),
            lengths: rng,
            limit: receiver.max_message.min(LONGEST),
            eager: plan.eager_size().into(),
            count: 0,
        }
    }
}

impl Iterator for Content {
    type Item = Expected;

    /// Most are small. All together are far less than the same number of the longest.
    fn next(&mut self) -> Option<Expected> {
        let rng = &mut self.lengths;
        let len = match rng.u32(..1000) {
            0..50 => 0,
            50..80 => self.eager + rng.u64(..2),
            80..500 => rng.u64(1..=256),
            500..800 => rng.u64(..=16 << 10),
            800..940 => rng.u64(..=128 << 10),
            940..990 => rng.u64(..=1 << 20),
            _ => rng.u64(..=LONGEST),
        };
        let number = self.count;
        self.count += 1;
        Some(Expected {
            seed: self.seed,
            number,
            len: len.min(self.limit) as usize,
        })
    }
}

impl Expected {
    /// The message's bytes.
    pub(crate) fn fill(self, message: &mut [u8]) {
        fill(self.id(), message);
    }

    /// Compares length and every byte, and says what is different.
    pub(crate) fn check(self, message: &[u8]) -> Result<(), String> {
        check(self.id(), self.len, message)
            .map_err(|problem| format!("message {}: {problem}", self.number))
    }

    fn id(self) -> u64 {
        random(&[self.seed, self.number]).u64(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(expected: Expected) -> Vec<u8> {
        let mut message = vec![0; expected.len];
        expected.fill(&mut message);
        message
    }

    fn content() -> Content {
        Content::new(7, &Plan::new(7, 3), Side::Client)
    }

    #[test]
    fn both_sides_make_the_same() {
        for (sent, expected) in content().zip(content()).take(300) {
            expected.check(&message(sent)).unwrap();
        }
    }

    #[test]
    fn a_changed_byte_and_a_cut_are_found() {
        let expected = content().find(|e| e.len > 5000).unwrap();
        let mut bytes = message(expected);
        bytes[4999] ^= 1;
        let problem = expected.check(&bytes).unwrap_err();
        assert!(problem.contains("1 bytes of the"), "{problem}");
        bytes.pop();
        assert!(expected.check(&bytes).unwrap_err().contains("instead of"));
    }

    #[test]
    fn another_message_of_the_same_length_is_found() {
        let expected = content().find(|e| e.len > 8).unwrap();
        let other = Expected {
            number: expected.number + 1,
            ..expected
        };
        assert!(expected.check(&message(other)).is_err());
    }
}
