#![allow(unsafe_code)]

use std::ptr::{self, NonNull};

use crate::{os::SharedBytes, transport::tcp::Span};

const WORD: usize = size_of::<u64>();

/// The number of bytes that are copied at a time, a multiple of the word size.
const CHUNK: usize = 4096;

/// Copies memory that other threads may read or write at the same time.
///
/// # Safety
///
/// Both `from` and `to` point to `len` bytes. All aligned words that contain these bytes are
/// initialised memory, for example of a [`Mapping`](crate::os::Mapping), and there is no reference
/// to these words.
pub(super) unsafe fn copy_shared(from: *mut u8, to: *mut u8, len: usize) {
    let mut chunk = [0; CHUNK];
    for start in (0..len).step_by(CHUNK) {
        let chunk = &mut chunk[..CHUNK.min(len - start)];
        // SAFETY: the caller guarantees the conditions on the bytes.
        let source = unsafe { words(from.wrapping_add(start), chunk.len()) };
        // SAFETY: as above.
        let target = unsafe { words(to.wrapping_add(start), chunk.len()) };
        if let (Some((source, at)), Some((target, place))) = (source, target) {
            source.read(at, chunk);
            target.write(place, chunk);
        }
    }
}

/// Copies a frame from the send slot to the memory of the receive.
///
/// # Safety
///
/// No other code accesses the bytes of the slot or of the receive, and the receive is long enough.
pub(super) unsafe fn copy_frame(from: Span, to: *mut u8) {
    // SAFETY: the caller guarantees the conditions on the slot and on the receive.
    unsafe { ptr::copy_nonoverlapping(from.start, to, from.len) };
}

/// Returns the aligned words that contain the `len` bytes at `start`, and the offset of these bytes
/// in the words. Whole words are needed, because the owner of the memory accesses each byte through
/// the aligned word that contains the byte.
///
/// # Safety
///
/// The conditions of [`copy_shared`] hold while the caller uses the result.
unsafe fn words<'a>(start: *mut u8, len: usize) -> Option<(SharedBytes<'a>, usize)> {
    let before = start.addr() % WORD;
    let first = NonNull::new(start.wrapping_sub(before))?;
    // SAFETY: the caller guarantees that these words are whole and initialised.
    let bytes = unsafe { SharedBytes::new(first, (before + len).next_multiple_of(WORD)) };
    Some((bytes, before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::Mapping;

    #[test]
    fn copy_moves_bytes_at_any_offsets() {
        let (from, to) = (Mapping::new(16384).unwrap(), Mapping::new(16384).unwrap());
        let bytes: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
        for (source, target, len) in [(0, 0, 1), (3, 5, 1), (1, 8, 10_000), (4095, 1, 8193)] {
            let (start, place) = (from.start().as_ptr(), to.start().as_ptr());
            let (start, place) = (start.wrapping_add(source), place.wrapping_add(target));
            // SAFETY: the bytes lie in a mapping that no other code uses.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, len) };
            // SAFETY: as above.
            unsafe { copy_shared(start, place, len) };
            let mut copied = vec![0; len];
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(place, copied.as_mut_ptr(), len) };
            assert_eq!(
                copied,
                bytes[..len],
                "a copy of {len} bytes from offset {source} to offset {target} must be exact"
            );
        }
    }
}
