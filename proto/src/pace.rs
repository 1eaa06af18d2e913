use std::time::{Duration, Instant};

use super::send_ring::READS;

/// The longest chunk in bytes in which a large message is read.
///
/// It is long enough to make the cost of the work request small, and short enough that control
/// frames, which queue behind the chunk, are not delayed for long.
pub const LONGEST_CHUNK: u64 = 1 << 20;

/// The shortest chunk, unless the message ends before: half a second on a link of 1 Mbit/s.
pub const SHORTEST_CHUNK: u64 = 64 << 10;

/// A chunk that takes no longer than this doubles the length of the next ones.
const QUICK: Duration = Duration::from_millis(100);
/// A chunk that takes longer than this halves the length of the next ones.
const SLOW: Duration = Duration::from_millis(400);

/// The length of the chunks in which large messages are read, and the number of reads in progress.
///
/// Only a complete chunk counts as progress, for keepalive and for connections that wait for
/// memory, so chunks are short on a slow link. The speed of a new connection's link is unknown, so
/// its first chunks are the shortest, and few are in progress. That also bounds the memory that is
/// pinned for a peer that never answers a read.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Pace {
    chunk: u64,
    longest: u64,
    /// The time since which the oldest read in progress has been the only one on the link.
    since: Option<Instant>,
}

impl Pace {
    pub(super) fn new(longest: u64) -> Self {
        Self {
            chunk: SHORTEST_CHUNK.min(longest),
            longest,
            since: None,
        }
    }

    /// Returns the length of the next chunk in bytes.
    pub(super) fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Returns the number of reads that may be in progress.
    pub(super) fn depth(&self) -> usize {
        if self.chunk < self.longest.min(2 * SHORTEST_CHUNK) {
            READS as usize / 2
        } else {
            READS as usize
        }
    }

    /// Records that a read is posted while none is in progress.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Records that the oldest read, of `len` bytes, has completed.
    pub(super) fn completed(&mut self, len: u64, now: Instant) {
        let Some(since) = self.since.replace(now) else {
            return;
        };
        // This is the time that a chunk of the present length would have taken.
        let took = now.saturating_duration_since(since).as_nanos();
        let took = took * u128::from(self.chunk) / u128::from(len.max(1));
        if took <= QUICK.as_nanos() {
            self.chunk = (2 * self.chunk).min(self.longest);
        } else if took > SLOW.as_nanos() {
            self.chunk = (self.chunk / 2).max(SHORTEST_CHUNK.min(self.longest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lengths of the chunks of `bytes` on a link of `rate` bytes a second, one at a
    /// time.
    fn chunks(pace: &mut Pace, mut bytes: u64, rate: u64) -> Vec<u64> {
        let mut now = Instant::now();
        let mut chunks = Vec::new();
        while bytes > 0 {
            let chunk = pace.chunk().min(bytes);
            pace.begin(now);
            now += Duration::from_micros(chunk * 1_000_000 / rate);
            pace.completed(chunk, now);
            chunks.push(chunk);
            bytes -= chunk;
        }
        chunks
    }

    #[test]
    fn on_a_slow_link_a_chunk_takes_less_than_a_second() {
        let mut pace = Pace::new(LONGEST_CHUNK);
        // 1 Mbit/s.
        let chunks = chunks(&mut pace, 4 << 20, 125_000);
        assert!(chunks.iter().all(|chunk| *chunk == SHORTEST_CHUNK));
        assert_eq!(pace.depth(), 2, "and few are on their way");
    }

    #[test]
    fn fast_link_soon_uses_longest_chunks() {
        let mut pace = Pace::new(LONGEST_CHUNK);
        assert_eq!(pace.depth(), 2);
        let chunks = chunks(&mut pace, 4 << 20, 1_000_000_000);
        let kib: Vec<u64> = chunks.iter().map(|chunk| chunk >> 10).collect();
        assert_eq!(kib, [64, 128, 256, 512, 1024, 1024, 1024, 64]);
        assert_eq!(pace.depth(), 4);
    }

    #[test]
    fn short_messages_measure_link_up_to_their_size() {
        let mut pace = Pace::new(LONGEST_CHUNK);
        for _ in 0..10 {
            // 20 KiB at 500 kB/s: 64 KiB would take 131 ms.
            chunks(&mut pace, 20 << 10, 500_000);
        }
        assert_eq!(pace.chunk(), SHORTEST_CHUNK);
        chunks(&mut pace, 20 << 10, 100_000_000);
        assert_eq!(pace.chunk(), 2 * SHORTEST_CHUNK);
    }

    #[test]
    fn a_link_that_becomes_slow_gets_short_chunks_again() {
        let mut pace = Pace::new(LONGEST_CHUNK);
        chunks(&mut pace, 8 << 20, 1_000_000_000);
        assert_eq!(pace.chunk(), LONGEST_CHUNK);
        chunks(&mut pace, 8 << 20, 125_000);
        assert_eq!(pace.chunk(), SHORTEST_CHUNK);
    }

    #[test]
    fn no_chunk_is_longer_than_the_memory_for_it() {
        for longest in [4096, SHORTEST_CHUNK, 4 * SHORTEST_CHUNK] {
            let mut pace = Pace::new(longest);
            for _ in 0..10 {
                chunks(&mut pace, 1 << 20, 1_000_000_000);
                assert!(pace.chunk() <= longest);
            }
            assert_eq!(pace.depth(), 4);
            chunks(&mut pace, 1 << 20, 1000);
            assert!(pace.chunk() <= longest);
        }
    }
}
