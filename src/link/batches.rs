/// How many such buffers there is memory for at first: as many as the default window has places.
const USUAL: usize = 32;

/// The receive buffers in which several messages lie, with how many of each the application has.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// No more than the window has places. Its memory is kept, so that nothing is allocated for a
    /// message.
    held: Vec<(u32, u32)>,
}

impl Batches {
    /// So many messages lie in this buffer.
    pub(super) fn put(&mut self, buffer: u32, count: u32) {
        if self.held.capacity() == 0 {
            self.held.reserve(USUAL);
        }
        self.held.push((buffer, count));
    }

    /// One of its messages is released. Returns whether that was the last.
    pub(super) fn take(&mut self, buffer: u32) -> bool {
        // The oldest are released first, most of the time.
        let Some(place) = self.held.iter().position(|(held, _)| *held == buffer) else {
            debug_assert!(false, "no more is released than was delivered");
            return false;
        };
        let left = &mut self.held[place].1;
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            self.held.remove(place);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_free_with_the_last_of_its_messages() {
        let mut batches = Batches::default();
        batches.put(7, 2);
        batches.put(3, 1);
        assert!(!batches.take(7));
        assert!(batches.take(3));
        assert!(batches.take(7));
        batches.put(7, 1);
        assert!(batches.take(7), "nothing is left of what was before");
    }
}
