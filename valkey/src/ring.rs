use std::ops::Range;

/// The allocator of the send buffer. Bytes are freed in the order in which they were allocated.
#[derive(Debug)]
pub(crate) struct Ring {
    size: usize,
    /// The offset of the next allocation, in bytes.
    next: usize,
    /// The number of allocated bytes.
    used: usize,
}

impl Ring {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            next: 0,
            used: 0,
        }
    }

    /// Returns true if all bytes are free.
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Allocates up to `want` contiguous bytes. The range is empty if no byte is free.
    pub(crate) fn allocate(&mut self, want: usize) -> Range<usize> {
        let len = want.min(self.size - self.used).min(self.size - self.next);
        let range = self.next..self.next + len;
        self.next = range.end % self.size;
        self.used += len;
        range
    }

    /// Frees the oldest `len` allocated bytes.
    pub(crate) fn free(&mut self, len: usize) {
        self.used -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_go_round() {
        let mut ring = Ring::new(10);
        assert_eq!((ring.allocate(6), ring.allocate(6)), (0..6, 6..10));
        assert_eq!(ring.allocate(1), 0..0);
        ring.free(6);
        assert_eq!((ring.allocate(3), ring.allocate(9)), (0..3, 3..6));
        ring.free(4);
        ring.free(3);
        assert_eq!((ring.allocate(9), ring.allocate(9)), (6..10, 0..3));
        ring.free(10);
        assert!(ring.is_empty());
    }
}
