use std::{collections::VecDeque, ops::Range};

use super::wire::WINDOWS;

/// What has come in and is not read, and what the peer is to be told when it is.
///
/// The peer fills one half of the ring after the other. Where one write ends the next one begins.
#[derive(Debug)]
pub(super) struct Receiving {
    /// Bytes of the ring.
    size: usize,
    /// Writes that may come in and not be read.
    queue: u16,
    /// What is left of each write, the oldest first.
    writes: VecDeque<usize>,
    /// Where in the ring the oldest unread byte is.
    at: usize,
    /// Bytes that have come in and are not read.
    unread: usize,
    /// Bytes of windows that the peer knows, and has not filled.
    open: usize,
    /// Bytes that belong to no window that the peer knows: read, or never used.
    free: usize,
    /// Where in the ring the next window begins.
    next_window: usize,
    /// The place in the peer's table for it.
    place: u32,
    /// Writes that were read to their end.
    consumed: u16,
    /// The number of consumed writes from which on the peer is told of them.
    tell_at: u16,
}

/// What the peer is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// The number of the first write that is not allowed.
    pub(super) limit: u16,
    /// Another window: where in the ring it is, and its place in the peer's table.
    pub(super) window: Option<(Range<usize>, u32)>,
}

/// The peer wrote more than it was allowed to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overrun;

impl Receiving {
    /// A ring of `size` bytes and room for `queue` writes. The peer is told of the first half while connecting.
    pub(super) fn new(size: usize, queue: u16) -> Self {
        let half = size / 2;
        Self {
            size: 2 * half,
            queue,
            writes: VecDeque::with_capacity(queue.into()),
            at: 0,
            unread: 0,
            open: half,
            free: half,
            next_window: half,
            place: 1,
            consumed: 0,
            tell_at: queue / 2,
        }
    }

    /// The length of a window.
    pub(super) fn half(&self) -> usize {
        self.size / 2
    }

    /// How many writes the peer may make at first.
    pub(super) fn credits(&self) -> u16 {
        self.queue
    }

    /// Whether there is anything to read.
    pub(super) fn is_empty(&self) -> bool {
        self.unread == 0
    }

    /// A write of `len` bytes has come in.
    pub(super) fn arrived(&mut self, len: u32) -> Result<(), Overrun> {
        let len = len as usize;
        if len > self.open || self.writes.len() >= self.queue.into() {
            return Err(Overrun);
        }
        self.open -= len;
        self.unread += len;
        self.writes.push_back(len);
        if len == 0 {
            self.drop_finished();
        }
        Ok(())
    }

    /// Where the oldest unread bytes are, at most `want` of them. Empty: there are none.
    pub(super) fn readable(&self, want: usize) -> Range<usize> {
        let len = want.min(self.unread).min(self.size - self.at);
        self.at..self.at + len
    }

    /// So many of the [`readable`](Self::readable) bytes were read.
    pub(super) fn read(&mut self, len: usize) {
        self.at = (self.at + len) % self.size;
        self.unread -= len;
        self.free += len;
        let mut left = len;
        while let Some(write) = self.writes.front_mut() {
            let part = left.min(*write);
            *write -= part;
            left -= part;
            if *write > 0 {
                break;
            }
            self.drop_finished();
        }
    }

    fn drop_finished(&mut self) {
        while self.writes.front() == Some(&0) {
            self.writes.pop_front();
            self.consumed = self.consumed.wrapping_add(1);
        }
    }

    /// What the peer is to be told now: that half of the ring is free, or that half of its credits are.
    pub(super) fn update(&mut self) -> Option<Update> {
        let half = self.half();
        // How far the one is behind the other, as numbers that wrap.
        let due = self.consumed.wrapping_sub(self.tell_at) < 0x8000;
        if self.free < half && !due {
            return None;
        }
        self.tell_at = self.consumed.wrapping_add(self.queue / 2);
        let window = (self.free >= half).then(|| {
            let start = self.next_window;
            self.next_window = (start + half) % self.size;
            self.free -= half;
            self.open += half;
            let place = self.place;
            self.place = (place + 1) % WINDOWS;
            (start..start + half, place)
        });
        Some(Update {
            limit: self.consumed.wrapping_add(self.queue),
            window,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(limit: u16, window: Option<(Range<usize>, u32)>) -> Option<Update> {
        Some(Update { limit, window })
    }

    #[test]
    fn the_second_half_is_told_of_at_once() {
        let mut receiving = Receiving::new(100, 8);
        assert_eq!(receiving.update(), update(8, Some((50..100, 1))));
        assert_eq!(receiving.update(), None);
    }

    #[test]
    fn halves_are_told_of_when_they_are_read() {
        let mut receiving = Receiving::new(101, 8);
        receiving.update();
        for (len, count) in [(50, 1), (30, 2), (20, 3)] {
            assert_eq!(receiving.arrived(len), Ok(()));
            assert_eq!(receiving.writes.len(), count);
        }
        assert_eq!(receiving.arrived(1), Err(Overrun));
        assert_eq!(receiving.readable(20), 0..20);
        receiving.read(20);
        assert_eq!(receiving.update(), None);
        // Over the end of one write into the next.
        assert_eq!(receiving.readable(1000), 20..100);
        receiving.read(40);
        assert_eq!((receiving.consumed, receiving.unread), (1, 40));
        assert_eq!(receiving.update(), update(9, Some((0..50, 0))));
        receiving.read(40);
        assert_eq!(receiving.readable(1), 0..0);
        assert_eq!(receiving.consumed, 3);
        assert_eq!(receiving.update(), update(11, Some((50..100, 1))));
    }

    #[test]
    fn credits_are_renewed_by_halves() {
        let mut receiving = Receiving::new(1 << 20, 8);
        receiving.update();
        for round in 1..50_000_u32 {
            for _ in 0..4 {
                assert_eq!(receiving.update(), None);
                assert_eq!(receiving.arrived(1), Ok(()));
                receiving.read(1);
            }
            let update = receiving.update().unwrap();
            assert_eq!(update.limit, (4 * round + 8) as u16);
        }
    }

    #[test]
    fn a_peer_without_credits_is_found_out() {
        let mut receiving = Receiving::new(100, 2);
        assert_eq!(receiving.arrived(1), Ok(()));
        assert_eq!(receiving.arrived(1), Ok(()));
        assert_eq!(receiving.arrived(1), Err(Overrun));
    }

    #[test]
    fn empty_writes_take_a_credit() {
        let mut receiving = Receiving::new(100, 8);
        assert_eq!(receiving.arrived(0), Ok(()));
        assert_eq!(receiving.consumed, 1);
        assert_eq!(receiving.arrived(1), Ok(()));
        assert_eq!(receiving.arrived(0), Ok(()));
        assert_eq!(receiving.consumed, 1);
        receiving.read(1);
        assert_eq!(receiving.consumed, 3);
    }
}
