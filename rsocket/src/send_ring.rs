use std::ops::Range;

/// The allocator of the send buffer, a ring: bytes are freed in the order of allocation.
#[derive(Debug)]
pub(super) struct SendRing {
    size: usize,
    /// The position of the next allocation.
    next: usize,
    /// The number of allocated bytes.
    used: usize,
}

impl SendRing {
    pub(super) fn new(size: usize) -> Self {
        Self {
            size,
            next: 0,
            used: 0,
        }
    }

    /// Allocates up to `want` contiguous bytes. `None` if none is free.
    pub(super) fn take(&mut self, want: usize) -> Option<Range<usize>> {
        let free = self.size - self.used;
        let end = self.size - self.next;
        let len = want.min(free).min(end);
        if len == 0 {
            return None;
        }
        let range = self.next..self.next + len;
        self.next = range.end % self.size;
        self.used += len;
        Some(range)
    }

    pub(super) fn has_room(&self) -> bool {
        self.used < self.size
    }

    /// Frees the oldest `len` allocated bytes.
    pub(super) fn give_back(&mut self, len: usize) {
        self.used -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_in_order() {
        let mut ring = SendRing::new(10);
        assert_eq!(ring.take(7), Some(0..7));
        assert_eq!(ring.take(7), Some(7..10));
        assert_eq!(ring.take(1), None);
        ring.give_back(7);
        assert_eq!(ring.take(9), Some(0..7));
        assert_eq!(ring.take(1), None);
        ring.give_back(3);
        assert_eq!(ring.take(9), Some(7..10));
    }
}
