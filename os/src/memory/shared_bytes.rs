#![allow(unsafe_code)]

use std::{
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

const WORD: usize = size_of::<u64>();

/// Bytes that threads, the device and peers may read and write concurrently.
///
/// Copies are sequences of relaxed atomic operations. If one thread copies bytes while another
/// thread writes them, the copy contains any mixture of old and new bytes, and the behaviour is
/// defined. Each byte is always accessed through the same atomic: the aligned 8-byte word that
/// contains the byte or, if that word would exceed the range, the byte alone. The device is not
/// part of Rust's memory model. Polling a completion with libibverbs includes the platform's memory
/// barrier, which orders the device's writes before later copies.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    head: &'a [AtomicU8],
    words: &'a [AtomicU64],
    tail: &'a [AtomicU8],
}

impl SharedBytes<'_> {
    /// Creates a view of the `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// The bytes must stay allocated and initialised during the lifetime of the view. Several
    /// threads of this program may access the bytes concurrently only through views that this
    /// function returned for the same arguments. Views of different ranges could access a byte
    /// through atomics of different sizes.
    #[inline]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        let unaligned = start.addr().get().next_multiple_of(WORD) - start.addr().get();
        let head = unaligned.min(len);
        let words = (len - head) / WORD;
        let tail = len - head - words * WORD;
        let start = start.as_ptr().cast_const();
        let words_start = start.wrapping_add(head);
        let tail_start = words_start.wrapping_add(words * WORD);
        #[expect(
            clippy::cast_ptr_alignment,
            reason = "`words_start` is a multiple of a word, or `words` is 0"
        )]
        let words_start = if words == 0 {
            NonNull::<AtomicU64>::dangling().as_ptr().cast_const()
        } else {
            words_start.cast::<AtomicU64>()
        };
        Self {
            // SAFETY: the first `head` of the given `len` bytes begin at `start`.
            head: unsafe { slice::from_raw_parts(start.cast(), head) },
            // SAFETY: `words_start` is aligned to a word, and the `words` words from that address
            // lie within the given `len` bytes.
            words: unsafe { slice::from_raw_parts(words_start, words) },
            // SAFETY: the last `tail` of the given `len` bytes begin at `tail_start`.
            tail: unsafe { slice::from_raw_parts(tail_start.cast(), tail) },
        }
    }

    /// Copies `src` into the view, starting at the byte `offset` of the view.
    ///
    /// Panics if the range exceeds the view, so callers must check the range first.
    #[inline]
    pub fn write(&self, offset: usize, src: &[u8]) {
        let (in_head, in_words, in_tail) = self.split(offset, src.len());
        let (head, rest) = src.split_at(in_head.len());
        let (words, tail) = rest.split_at(in_words.len());
        store_bytes(&self.head[in_head], head);
        store_words(self.words, in_words.start, words);
        store_bytes(&self.tail[in_tail], tail);
    }

    /// Fills `dst` with bytes of the view, starting at the byte `offset` of the view.
    ///
    /// Panics if the range exceeds the view, so callers must check the range first.
    #[inline]
    pub fn read(&self, offset: usize, dst: &mut [u8]) {
        let (in_head, in_words, in_tail) = self.split(offset, dst.len());
        let (head, rest) = dst.split_at_mut(in_head.len());
        let (words, tail) = rest.split_at_mut(in_words.len());
        load_bytes(&self.head[in_head], head);
        load_words(self.words, in_words.start, words);
        load_bytes(&self.tail[in_tail], tail);
    }

    /// Splits a range of bytes into the parts that lie in the head, in the words and in the tail.
    /// The returned ranges are in bytes. Each range is relative to the start of its part.
    #[inline]
    fn split(&self, offset: usize, len: usize) -> (Range, Range, Range) {
        let (start, end) = (offset, offset + len);
        let part = |first: usize, len: usize| {
            let start = start.clamp(first, first + len) - first;
            let end = end.clamp(first, first + len) - first;
            start..end
        };
        let words = self.words.len() * WORD;
        let tail = self.head.len() + words;
        (
            part(0, self.head.len()),
            part(self.head.len(), words),
            part(tail, self.tail.len()),
        )
    }
}

type Range = std::ops::Range<usize>;

#[inline]
fn store_bytes(to: &[AtomicU8], from: &[u8]) {
    for (to, from) in to.iter().zip(from) {
        to.store(*from, Relaxed);
    }
}

#[inline]
fn load_bytes(from: &[AtomicU8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.load(Relaxed);
    }
}

/// Copies `src` into `words`, starting at the byte `offset` of `words`.
#[inline]
fn store_words(words: &[AtomicU64], offset: usize, src: &[u8]) {
    let (first, within) = (offset / WORD, offset % WORD);
    let (partial, src) = src.split_at(partial_len(within, src.len()));
    if !partial.is_empty() {
        merge(&words[first], within, partial);
    }
    let words = &words[first + usize::from(within > 0)..];
    let (whole, rest) = src.as_chunks::<WORD>();
    for (to, from) in words.iter().zip(whole) {
        to.store(u64::from_ne_bytes(*from), Relaxed);
    }
    if !rest.is_empty() {
        merge(&words[whole.len()], 0, rest);
    }
}

/// Fills `dst` with bytes of `words`, starting at the byte `offset` of `words`.
#[inline]
fn load_words(words: &[AtomicU64], offset: usize, dst: &mut [u8]) {
    let (first, within) = (offset / WORD, offset % WORD);
    let (partial, dst) = dst.split_at_mut(partial_len(within, dst.len()));
    if !partial.is_empty() {
        let word = words[first].load(Relaxed).to_ne_bytes();
        partial.copy_from_slice(&word[within..within + partial.len()]);
    }
    let words = &words[first + usize::from(within > 0)..];
    let (whole, rest) = dst.as_chunks_mut::<WORD>();
    for (to, from) in whole.iter_mut().zip(words) {
        *to = from.load(Relaxed).to_ne_bytes();
    }
    if !rest.is_empty() {
        let word = words[whole.len()].load(Relaxed).to_ne_bytes();
        rest.copy_from_slice(&word[..rest.len()]);
    }
}

/// Returns the number of bytes in the incomplete first word of a range of `len` bytes. The range
/// begins `within` bytes after the start of that word. Returns 0 if the range begins at a word
/// boundary.
#[inline]
fn partial_len(within: usize, len: usize) -> usize {
    if within == 0 {
        0
    } else {
        len.min(WORD - within)
    }
}

/// Writes `src` to the bytes of `word` that begin at `offset`. Preserves concurrent changes of the
/// other bytes.
#[inline]
fn merge(word: &AtomicU64, offset: usize, src: &[u8]) {
    let merged = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes[offset..offset + src.len()].copy_from_slice(src);
        Some(u64::from_ne_bytes(bytes))
    };
    // `fetch_update` fails only if the closure returns `None`, which `merged` never does.
    let _ = word.fetch_update(Relaxed, Relaxed, merged);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Checks that copies through the view equal plain copies, for all alignments of the memory and
    /// all small offsets and lengths.
    #[test]
    fn copies_are_exact_at_every_alignment() {
        for start in 0..9 {
            for len in 0..33 {
                for offset in 0..=len {
                    for count in 0..=len - offset {
                        check(start, len, offset, count);
                    }
                }
            }
        }
    }

    fn check(start: usize, len: usize, offset: usize, count: usize) {
        let mut memory: Vec<u8> = (100..164).collect();
        let mut expected = memory.clone();
        let src: Vec<u8> = (0..count as u8).collect();
        expected[start + offset..start + offset + count].copy_from_slice(&src);

        let first = NonNull::new(memory[start..].as_mut_ptr()).unwrap();
        // SAFETY: the `len` bytes from `first` lie inside the vector `memory`, which no other code
        // accesses before the last use of `shared`.
        let shared = unsafe { SharedBytes::new(first, len) };
        shared.write(offset, &src);
        let mut read = vec![0; count];
        shared.read(offset, &mut read);
        assert_eq!(read, src);
        assert_eq!(memory, expected, "{start} {len} {offset} {count}");
    }

    /// Two threads write neighbouring bytes of the same word, and neither overwrites the other's
    /// bytes.
    #[test]
    fn neighbours_are_kept() {
        let mut memory = [0_u64; 2];
        let first = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: `first` points to the 16 bytes of the array `memory`, which outlives the scope
        // below and is accessed only through `shared` in that scope.
        let shared = unsafe { SharedBytes::new(first, 16) };
        thread::scope(|scope| {
            for offset in [5, 9] {
                scope.spawn(move || {
                    for round in 0..=u8::MAX {
                        let bytes = [round; 4];
                        shared.write(offset, &bytes);
                        let mut read = [0; 4];
                        shared.read(offset, &mut read);
                        assert_eq!(read, bytes);
                    }
                });
            }
        });
        let mut all = [0; 16];
        shared.read(0, &mut all);
        assert_eq!(
            all,
            [
                0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0
            ]
        );
    }
}
