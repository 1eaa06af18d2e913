use std::{collections::VecDeque, ops::Range};

use super::wire::{WINDOWS, Window};

/// The credits and windows that the peer has granted to this side.
#[derive(Debug)]
pub(super) struct Sending {
    /// The sequence number of the next write, modulo 2¹⁶.
    next: u16,
    /// The sequence number of the first write that the peer does not allow yet, modulo 2¹⁶.
    limit: u16,
    /// The unused parts of the windows that the peer has announced. The first entry is the current
    /// window.
    windows: VecDeque<Window>,
    /// The index in this side's table at which the peer stores its next window.
    table_index: u32,
}

impl Sending {
    /// Creates the initial state.
    ///
    /// `first` is the window in the peer's private data; the peer will store its next window at
    /// index 1 of the table. A `first` of length 0 is ignored, like an empty entry of the table.
    pub(super) fn new(credits: u16, first: Window) -> Self {
        Self {
            next: 0,
            limit: credits,
            windows: [first].into_iter().filter(|it| it.length > 0).collect(),
            table_index: 1,
        }
    }

    /// Returns the next unused part of the current window, at most `want` bytes long. Returns
    /// `None` if the peer allows no write.
    pub(super) fn room(&self, want: usize) -> Option<Window> {
        if self.next == self.limit {
            return None;
        }
        let window = self.windows.front()?;
        Some(Window {
            length: u32::try_from(want).map_or(window.length, |want| want.min(window.length)),
            ..*window
        })
    }

    /// Records that `length` bytes were written into the window that [`room`](Self::room) returned.
    pub(super) fn wrote(&mut self, length: u32) {
        self.next = self.next.wrapping_add(1);
        if let Some(window) = self.windows.front_mut() {
            window.addr = window.addr.wrapping_add(length.into());
            window.length -= length;
            if window.length == 0 {
                self.windows.pop_front();
            }
        }
    }

    /// Handles a message in which the peer allows all writes with sequence numbers below `limit`.
    ///
    /// The peer may have stored a window in the table before it sent this message. `take` removes
    /// the window at an index from the table and returns it, or returns `None` if the window is not
    /// complete yet. If a window is still in flight, a later call of this method takes it.
    pub(super) fn allowed(&mut self, limit: u16, take: impl FnOnce(u32) -> Option<Window>) {
        self.limit = limit;
        // While two windows still have unused bytes, the peer cannot have announced a third.
        if self.windows.len() < WINDOWS as usize
            && let Some(window) = take(self.table_index)
        {
            self.windows.push_back(window);
            self.table_index = (self.table_index + 1) % WINDOWS;
        }
    }
}

/// The allocator of the send buffer. The buffer is a ring: bytes are freed in the order in which
/// they were allocated.
#[derive(Debug)]
pub(super) struct SendRing {
    size: usize,
    /// The offset of the next allocation, in bytes.
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

    /// Allocates up to `want` contiguous bytes. Returns `None` if no byte is free.
    pub(super) fn allocate(&mut self, want: usize) -> Option<Range<usize>> {
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
    pub(super) fn free(&mut self, len: usize) {
        self.used -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(addr: u64, length: u32) -> Window {
        Window {
            addr,
            rkey: 7,
            length,
        }
    }

    #[test]
    fn windows_are_filled_in_turn() {
        let mut sending = Sending::new(100, window(1000, 10));
        sending.allowed(100, |table_index| {
            assert_eq!(table_index, 1);
            Some(window(2000, 5))
        });
        assert_eq!(sending.room(4), Some(window(1000, 4)));
        sending.wrote(4);
        // A write ends at the end of its window, even if another window follows.
        assert_eq!(sending.room(100), Some(window(1004, 6)));
        sending.wrote(6);
        assert_eq!(sending.room(100), Some(window(2000, 5)));
        sending.wrote(5);
        assert_eq!(sending.room(1), None);
        sending.allowed(100, |table_index| {
            assert_eq!(table_index, 0);
            Some(window(1000, 10))
        });
        assert_eq!(sending.room(usize::MAX), Some(window(1000, 10)));
    }

    #[test]
    fn credits_run_out_and_wrap() {
        let mut sending = Sending::new(2, window(0, 1 << 20));
        for limit in (4..200_000_u32).step_by(2) {
            for _ in 0..2 {
                assert!(sending.room(1).is_some());
                sending.wrote(1);
            }
            assert_eq!(sending.room(1), None);
            sending.allowed(limit as u16, |_| None);
            if sending.windows.is_empty() {
                sending.allowed(limit as u16, |_| Some(window(0, 1 << 20)));
            }
        }
    }

    #[test]
    fn first_window_of_no_bytes_is_no_room() {
        let mut sending = Sending::new(2, window(1000, 0));
        assert_eq!(sending.room(1), None);
        sending.allowed(2, |_| Some(window(2000, 5)));
        assert_eq!(sending.room(1), Some(window(2000, 1)));
    }

    #[test]
    fn no_more_windows_than_there_are() {
        let mut sending = Sending::new(2, window(0, 1));
        sending.allowed(2, |_| Some(window(1, 1)));
        sending.allowed(2, |_| unreachable!());
        assert_eq!(sending.windows.len(), 2);
    }

    #[test]
    fn bytes_come_back_in_order() {
        let mut ring = SendRing::new(10);
        assert_eq!(ring.allocate(7), Some(0..7));
        assert_eq!(ring.allocate(7), Some(7..10));
        assert_eq!(ring.allocate(1), None);
        ring.free(7);
        assert_eq!(ring.allocate(9), Some(0..7));
        assert_eq!(ring.allocate(1), None);
        ring.free(3);
        assert_eq!(ring.allocate(9), Some(7..10));
    }
}
