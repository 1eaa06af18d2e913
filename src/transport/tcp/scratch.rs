use std::{
    cell::Cell,
    fmt,
    ops::{Deref, DerefMut},
    thread::LocalKey,
};

/// A buffer that no connection uses. A thread keeps it for the connection that the thread serves
/// next.
pub(super) type Spare = Cell<Option<Box<[u8]>>>;

/// A buffer that a connection has only while the buffer contains bytes, so that idle connections
/// need no memory for buffers. Each thread keeps one spare buffer, and gives it to the connection
/// that the thread serves.
pub(super) struct Scratch {
    /// The buffer, or an empty slice if the connection has none.
    bytes: Box<[u8]>,
    spare: &'static LocalKey<Spare>,
    len: usize,
}

impl Scratch {
    /// Creates a scratch buffer of `len` bytes. All users of `spare` pass the same length.
    pub(super) fn new(spare: &'static LocalKey<Spare>, len: usize) -> Self {
        Self {
            bytes: Box::default(),
            spare,
            len,
        }
    }

    /// Returns the length of the buffer in bytes, even if the connection has no buffer now.
    pub(super) fn capacity(&self) -> usize {
        self.len
    }

    /// If the connection has no buffer, takes the spare buffer of the calling thread, or allocates
    /// a buffer if the thread has none.
    #[inline]
    pub(super) fn take(&mut self) {
        if self.bytes.is_empty() {
            // While a thread exits, its thread-local variables may already be destroyed.
            let spare = self.spare.try_with(Cell::take).unwrap_or_default();
            self.bytes = spare.unwrap_or_else(|| vec![0; self.len].into());
        }
    }

    /// Makes the buffer the spare buffer of the calling thread. If the thread already has a spare
    /// buffer, the thread's old buffer is dropped.
    #[inline]
    pub(super) fn put_back(&mut self) {
        if !self.bytes.is_empty() {
            let bytes = std::mem::take(&mut self.bytes);
            // While a thread exits, this call may fail. The buffer is then dropped.
            let _ = self.spare.try_with(|spare| spare.set(Some(bytes)));
        }
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static SPARE: Spare = const { Cell::new(None) };
    }

    #[test]
    fn connections_of_a_thread_share_a_buffer() {
        let [mut one, mut other] = [(); 2].map(|()| Scratch::new(&SPARE, 64));
        assert!(one.is_empty());
        one.take();
        let address = one.as_ptr();
        assert_eq!(one.len(), 64);
        one.put_back();
        assert!(one.is_empty());
        other.take();
        assert_eq!(other.as_ptr(), address);
        one.take();
        assert_ne!(one.as_ptr(), address, "a buffer must have one user only");
        one.put_back();
        other.put_back();
    }
}
