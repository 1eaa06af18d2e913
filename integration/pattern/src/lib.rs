//! Byte patterns that identify messages in tests. This is a separate package because it is
//! optimised even in debug builds: emulated guests fill and compare many bytes, while the other
//! code of tests mostly waits.

use std::io::{Read, Write};

use fastrand::Rng;

/// The number of bytes that `check` compares at a time.
const PIECE: usize = 4096;

/// Returns a random number generator that is seeded with all elements of `parts`.
pub fn random(parts: &[u64]) -> Rng {
    let seed = parts
        .iter()
        .fold(0, |state, part| Rng::with_seed(state ^ part).u64(..));
    Rng::with_seed(seed)
}

/// Returns `len` bytes. Each byte depends on `number`, on `len`, and on the byte's position.
pub fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Pattern::new(number, len).fill(&mut bytes);
    bytes
}

/// Returns `len` bytes of an infinite sequence, starting at position `at`.
pub fn sequence(at: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at ^ (at >> 8) ^ (at >> 16)) as u8;
    (at..at + len).map(byte).collect()
}

/// Writes the first `len` bytes of the [`sequence`] to a stream, at most `piece` bytes at a time.
///
/// # Panics
///
/// If a write fails.
pub fn write_sequence(mut stream: impl Write, len: usize, piece: usize) {
    for piece in sequence(0, len).chunks(piece) {
        stream.write_all(piece).expect("the write must succeed");
    }
}

/// Reads the first `len` bytes of the [`sequence`] from a stream, at most `piece` bytes at a time.
///
/// # Panics
///
/// If a read fails, the stream ends earlier, or the bytes differ.
pub fn read_sequence(mut stream: impl Read, len: usize, piece: usize) {
    let mut buffer = vec![0; piece];
    let mut at = 0;
    while at < len {
        let count = stream.read(&mut buffer).expect("the read must succeed");
        assert!(count > 0, "the stream ends after {at} of {len} bytes");
        let is_equal = buffer[..count] == sequence(at, count);
        assert!(
            is_equal,
            "at least one of the {count} bytes from byte {at} on differs"
        );
        at += count;
    }
}

/// Compares `message` with the [`pattern`] for `number` and `len`. Allocates no memory for the
/// expected message.
///
/// # Errors
///
/// If the length or a byte differs. The error describes the difference.
pub fn check(number: u64, len: usize, message: &[u8]) -> Result<(), String> {
    if message.len() != len {
        return Err(format!("{} bytes instead of {len}", message.len()));
    }
    let mut pattern = Pattern::new(number, len);
    let mut expected = [0; PIECE];
    for (at, piece) in message.chunks(PIECE).enumerate() {
        let expected = &mut expected[..piece.len()];
        pattern.fill(expected);
        if piece != expected {
            let differing = piece.iter().zip(&*expected).filter(|(a, b)| a != b);
            return Err(format!(
                "{} bytes of the {} bytes from byte {} on differ",
                differing.count(),
                piece.len(),
                at * PIECE
            ));
        }
    }
    Ok(())
}

/// A generator of pattern bytes, which generates eight bytes per step. If a caller fills a pattern
/// in pieces, the length of each piece except the last must therefore be a multiple of eight.
struct Pattern(u64);

impl Pattern {
    fn new(number: u64, len: usize) -> Self {
        Self((number.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ len as u64)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            word.copy_from_slice(&(self.0 ^ self.0 >> 29).to_le_bytes()[..word.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_a_cut_and_another_message_are_found() {
        for len in [1, 7, 8, PIECE, PIECE + 1, 3 * PIECE + 5] {
            let mut message = pattern(7, len);
            check(7, len, &message).unwrap();
            assert!(check(8, len, &message).is_err(), "{len}");
            *message.last_mut().unwrap() ^= 1;
            let problem = check(7, len, &message).unwrap_err();
            assert!(problem.starts_with("1 bytes of the"), "{problem}");
            message.pop();
            let problem = check(7, len, &message).unwrap_err();
            assert!(problem.contains("instead of"), "{problem}");
        }
        check(7, 0, &[]).unwrap();
    }

    #[test]
    fn a_sequence_goes_on_where_it_was_left() {
        let whole = sequence(0, 200_000);
        assert_eq!(sequence(70_000, 5)[..], whole[70_000..70_005]);
        assert_ne!(whole[..256], whole[256..512]);
        assert_ne!(whole[..1 << 16], whole[1 << 16..2 << 16]);
    }

    #[test]
    fn all_parts_of_a_purpose_matter() {
        let number = |parts: &[u64]| random(parts).u64(..);
        assert_eq!(number(&[1, 2]), number(&[1, 2]));
        assert_ne!(number(&[1, 2]), number(&[2, 1]));
        assert_ne!(number(&[1, 2]), number(&[1, 3]));
    }
}
