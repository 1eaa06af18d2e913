use std::time::{Duration, Instant};

use super::send_ring::READS;

/// The maximum length in bytes of the chunks in which a large message is read.
///
/// At this length, the cost of a work request is negligible, and control frames, which queue behind
/// the chunk, are not delayed for long.
pub const LONGEST_CHUNK: u64 = 1 << 20;

/// The minimum length in bytes of a chunk, except the last chunk of a message. A link of 1 Mbit/s
/// transfers a chunk of this length in half a second.
pub const SHORTEST_CHUNK: u64 = 64 << 10;

/// If a read of a chunk takes at most this time, the length of the next chunks is doubled.
const QUICK: Duration = Duration::from_millis(100);
/// If a read of a chunk takes longer than this time, the length of the next chunks is halved.
const SLOW: Duration = Duration::from_millis(400);

/// Adapts the length of the chunks in which large messages are read, and the number of concurrent
/// reads, to the speed of the link.
///
/// On a slow link, chunks are short, because progress becomes visible only when a chunk is
/// complete. The keepalive and the connections that wait for memory depend on this progress. At
/// first, the speed of the link is unknown. Therefore the first chunks of a connection have the
/// minimum length, and at most two reads are in progress. If a peer never answers a read, only the
/// memory of these first chunks is pinned.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct ChunkPace {
    chunk: u64,
    longest: u64,
    /// The time at which the oldest read in progress was posted, or at which the previous read
    /// completed, whichever is later.
    since: Option<Instant>,
}

impl ChunkPace {
    pub(super) fn new(longest: u64) -> Self {
        Self {
            chunk: SHORTEST_CHUNK.min(longest),
            longest,
            since: None,
        }
    }

    /// Returns the length in bytes of the next chunk.
    pub(super) fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Returns the maximum number of reads in progress.
    pub(super) fn depth(&self) -> usize {
        if self.chunk < self.longest.min(2 * SHORTEST_CHUNK) {
            READS as usize / 2
        } else {
            READS as usize
        }
    }

    /// Records that a read is posted while no other read is in progress. The duration of this read
    /// is measured from `now`.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Records that the oldest read in progress, of `len` bytes, has completed.
    pub(super) fn completed(&mut self, len: u64, now: Instant) {
        let Some(since) = self.since.replace(now) else {
            return;
        };
        // Scales the measured time to a chunk of the current length.
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

    /// Simulates the transfer of `bytes` over a link of `rate` bytes per second, one chunk at a
    /// time. Returns the lengths of the chunks in bytes.
    fn chunks(pace: &mut ChunkPace, mut bytes: u64, rate: u64) -> Vec<u64> {
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
        let mut pace = ChunkPace::new(LONGEST_CHUNK);
        // The rate of the link is 1 Mbit/s.
        let chunks = chunks(&mut pace, 4 << 20, 125_000);
        assert!(chunks.iter().all(|chunk| *chunk == SHORTEST_CHUNK));
        assert_eq!(pace.depth(), 2, "at most two reads may be in progress");
    }

    #[test]
    fn fast_link_soon_uses_longest_chunks() {
        let mut pace = ChunkPace::new(LONGEST_CHUNK);
        assert_eq!(pace.depth(), 2);
        let chunks = chunks(&mut pace, 4 << 20, 1_000_000_000);
        let kib: Vec<u64> = chunks.iter().map(|chunk| chunk >> 10).collect();
        assert_eq!(kib, [64, 128, 256, 512, 1024, 1024, 1024, 64]);
        assert_eq!(pace.depth(), 4);
    }

    #[test]
    fn short_messages_measure_link_up_to_their_size() {
        let mut pace = ChunkPace::new(LONGEST_CHUNK);
        for _ in 0..10 {
            // At 500 kB/s, 20 KiB take 41 ms, so 64 KiB would take 131 ms.
            chunks(&mut pace, 20 << 10, 500_000);
        }
        assert_eq!(pace.chunk(), SHORTEST_CHUNK);
        chunks(&mut pace, 20 << 10, 100_000_000);
        assert_eq!(pace.chunk(), 2 * SHORTEST_CHUNK);
    }

    #[test]
    fn a_link_that_becomes_slow_gets_short_chunks_again() {
        let mut pace = ChunkPace::new(LONGEST_CHUNK);
        chunks(&mut pace, 8 << 20, 1_000_000_000);
        assert_eq!(pace.chunk(), LONGEST_CHUNK);
        chunks(&mut pace, 8 << 20, 125_000);
        assert_eq!(pace.chunk(), SHORTEST_CHUNK);
    }

    #[test]
    fn no_chunk_is_longer_than_the_memory_for_it() {
        for longest in [4096, SHORTEST_CHUNK, 4 * SHORTEST_CHUNK] {
            let mut pace = ChunkPace::new(longest);
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
