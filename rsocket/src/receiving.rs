use std::{collections::VecDeque, ops::Range};

use super::wire::WINDOWS;

/// The state of the ring that contains the received, unread bytes. This state determines when this
/// side announces a window or grants credits to the peer.
///
/// Each window is one half of the ring, and the peer fills the two halves alternately. Each write
/// begins where the previous write ended.
#[derive(Debug)]
pub(super) struct Receiving {
    /// The length of the ring in bytes.
    size: usize,
    /// The maximum number of received, unread writes.
    queue: u16,
    /// The number of unread bytes of each write, oldest first.
    writes: VecDeque<usize>,
    /// The offset of the oldest unread byte in the ring, in bytes.
    at: usize,
    /// The number of received, unread bytes.
    unread: usize,
    /// The number of bytes that the peer can still write into announced windows.
    open: usize,
    /// The number of free bytes outside of announced windows.
    free: usize,
    /// The offset of the next window in the ring, in bytes.
    next_window: usize,
    /// The index of the next window in the peer's table.
    table_index: u32,
    /// The number of completely read writes, modulo 2¹⁶.
    consumed: u16,
    /// The value of `consumed` at which this side grants new credits to the peer.
    update_at: u16,
}

/// An update that grants credits to the peer, and optionally announces a window.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// The sequence number of the first write that the peer must not send yet, modulo 2¹⁶.
    pub(super) limit: u16,
    /// The new window, if there is one: its range of the ring in bytes, and its index in the peer's
    /// table.
    pub(super) window: Option<(Range<usize>, u32)>,
}

/// The error that occurs if the peer writes more than its windows or credits allow.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overrun;

impl Receiving {
    /// Creates a ring of `size` bytes for up to `queue` unread writes.
    ///
    /// The connection's private data announces the first half to the peer.
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
            table_index: 1,
            consumed: 0,
            update_at: queue / 2,
        }
    }

    /// Returns the length of a window in bytes.
    pub(super) fn half(&self) -> usize {
        self.size / 2
    }

    /// Returns the peer's initial number of credits.
    pub(super) fn credits(&self) -> u16 {
        self.queue
    }

    /// Returns whether all received bytes were read.
    pub(super) fn is_empty(&self) -> bool {
        self.unread == 0
    }

    /// Records that a write of `len` bytes has arrived.
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

    /// Returns the range of the oldest unread bytes, at most `want` bytes long. The range is empty
    /// if all bytes were read.
    pub(super) fn readable(&self, want: usize) -> Range<usize> {
        let len = want.min(self.unread).min(self.size - self.at);
        self.at..self.at + len
    }

    /// Records that the first `len` of the [`readable`](Self::readable) bytes were read.
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

    /// Returns an update if one is due, and assumes that the caller sends it. An update is due if
    /// half of the ring is free and not part of an announced window. It is also due if at least
    /// `queue / 2` writes have been read completely since the previous update.
    pub(super) fn update(&mut self) -> Option<Update> {
        let half = self.half();
        // Both counters wrap, so their difference decides whether `consumed` has reached
        // `update_at`.
        let due = self.consumed.wrapping_sub(self.update_at) < 0x8000;
        if self.free < half && !due {
            return None;
        }
        self.update_at = self.consumed.wrapping_add(self.queue / 2);
        let window = (self.free >= half).then(|| {
            let start = self.next_window;
            self.next_window = (start + half) % self.size;
            self.free -= half;
            self.open += half;
            let table_index = self.table_index;
            self.table_index = (table_index + 1) % WINDOWS;
            (start..start + half, table_index)
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
    fn second_half_is_announced_at_once() {
        let mut receiving = Receiving::new(100, 8);
        assert_eq!(receiving.update(), update(8, Some((50..100, 1))));
        assert_eq!(receiving.update(), None);
    }

    #[test]
    fn halves_are_announced_when_they_are_read() {
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
        // The readable range spans two writes.
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
    fn write_without_credit_is_a_violation() {
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
