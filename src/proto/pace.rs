use std::time::{Duration, Instant};

use super::send_ring::READS;

/// The longest piece in bytes in which a large message is read: long enough to make the work
/// request's cost small, short enough that control frames, which queue behind it, are not held up
/// for long.
pub(crate) const LONGEST_CHUNK: u64 = 1 << 20;

/// The shortest piece, unless the message ends before: half a second on a link of 1 Mbit/s.
pub(crate) const SHORTEST_CHUNK: u64 = 64 << 10;

/// Pieces grow while one comes within this time, and shrink when one takes longer than that.
const QUICK: Duration = Duration::from_millis(100);
const SLOW: Duration = Duration::from_millis(400);

/// How long the pieces are in which large messages are read, and how many of them are on their way
/// at a time.
///
/// A piece that comes is the only sign of progress, for keepalive and for whoever waits for the
/// memory, so on a slow link pieces are short. Nothing is known of a new connection's link: its
/// first pieces are the shortest, and few, which is also all the memory that a peer that never
/// answers a read gets pinned.
#[derive(Debug)]
pub(super) struct Pace {
    piece: u64,
    longest: u64,
    /// Since when the oldest read that is on its way has had the link to itself.
    since: Option<Instant>,
}

impl Pace {
    pub(super) fn new(longest: u64) -> Self {
        Self {
            piece: SHORTEST_CHUNK.min(longest),
            longest,
            since: None,
        }
    }

    /// How long the next piece is to be, in bytes.
    pub(super) fn piece(&self) -> u64 {
        self.piece
    }

    /// How many reads may be on their way.
    pub(super) fn depth(&self) -> usize {
        if self.piece < self.longest.min(2 * SHORTEST_CHUNK) {
            READS as usize / 2
        } else {
            READS as usize
        }
    }

    /// A read is posted, and there was none.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// The oldest read, of `len` bytes, is done.
    pub(super) fn came(&mut self, len: u64, now: Instant) {
        let Some(since) = self.since.replace(now) else {
            return;
        };
        // What a piece of the present length would have taken.
        let took = now.saturating_duration_since(since).as_nanos();
        let took = took * u128::from(self.piece) / u128::from(len.max(1));
        if took <= QUICK.as_nanos() {
            self.piece = (2 * self.piece).min(self.longest);
        } else if took > SLOW.as_nanos() {
            self.piece = (self.piece / 2).max(SHORTEST_CHUNK.min(self.longest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the pieces of `bytes` on a link that moves so many bytes a second, one after
    /// the other.
    fn pieces(pace: &mut Pace, mut bytes: u64, rate: u64) -> Vec<u64> {
        let mut now = Instant::now();
        let mut pieces = Vec::new();
        while bytes > 0 {
            let piece = pace.piece().min(bytes);
            pace.begin(now);
            now += Duration::from_micros(piece * 1_000_000 / rate);
            pace.came(piece, now);
            pieces.push(piece);
            bytes -= piece;
        }
        pieces
    }

    #[test]
    fn on_a_slow_link_a_piece_takes_less_than_a_second() {
        let mut pace = Pace::new(LONGEST_CHUNK);
        // 1 Mbit/s.
        let pieces = pieces(&mut pace, 4 << 20, 125_000);
        assert!(pieces.iter().all(|piece| *piece == SHORTEST_CHUNK));
        assert_eq!(pace.depth(), 2, "and few are on their way");
    }

    #[test]
    fn on_a_fast_link_pieces_are_soon_as_long_as_they_may_be() {
        let mut pace = Pace::new(LONGEST_CHUNK);
        assert_eq!(pace.depth(), 2);
        let pieces = pieces(&mut pace, 4 << 20, 1_000_000_000);
        let kib: Vec<u64> = pieces.iter().map(|piece| piece >> 10).collect();
        assert_eq!(kib, [64, 128, 256, 512, 1024, 1024, 1024, 64]);
        assert_eq!(pace.depth(), 4);
    }

    #[test]
    fn short_messages_tell_as_much_of_the_link_as_they_can() {
        let mut pace = Pace::new(LONGEST_CHUNK);
        for _ in 0..10 {
            // 20 KiB at 500 kB/s: 64 KiB would take 131 ms.
            pieces(&mut pace, 20 << 10, 500_000);
        }
        assert_eq!(pace.piece(), SHORTEST_CHUNK);
        pieces(&mut pace, 20 << 10, 100_000_000);
        assert_eq!(pace.piece(), 2 * SHORTEST_CHUNK);
    }

    #[test]
    fn a_link_that_becomes_slow_gets_short_pieces_again() {
        let mut pace = Pace::new(LONGEST_CHUNK);
        pieces(&mut pace, 8 << 20, 1_000_000_000);
        assert_eq!(pace.piece(), LONGEST_CHUNK);
        pieces(&mut pace, 8 << 20, 125_000);
        assert_eq!(pace.piece(), SHORTEST_CHUNK);
    }

    #[test]
    fn no_piece_is_longer_than_the_memory_for_it() {
        for longest in [4096, SHORTEST_CHUNK, 4 * SHORTEST_CHUNK] {
            let mut pace = Pace::new(longest);
            for _ in 0..10 {
                pieces(&mut pace, 1 << 20, 1_000_000_000);
                assert!(pace.piece() <= longest);
            }
            assert_eq!(pace.depth(), 4);
            pieces(&mut pace, 1 << 20, 1000);
            assert!(pace.piece() <= longest);
        }
    }
}
