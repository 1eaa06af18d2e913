use std::sync::OnceLock;

use super::layout::Layout;
use crate::{
    status::OsError,
    transport::memory::{Domain, Registration},
};

/// The receive and send buffers of one connection.
///
/// The memory of the buffers is divided into pieces. Each piece is allocated when one of its
/// buffers is first needed.
#[derive(Debug)]
pub(crate) struct Buffers {
    domain: Domain,
    layout: Layout,
    pieces: Box<[OnceLock<Registration>]>,
}

/// The location of a buffer: its piece of memory, and its offset in this piece in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location<'a> {
    pub(crate) memory: &'a Registration,
    pub(crate) offset: usize,
}

impl Buffers {
    pub(super) fn new(domain: &Domain, layout: Layout) -> Self {
        let count = layout.piece_of(layout.count() - 1) + 1;
        Self {
            domain: domain.clone(),
            layout,
            pieces: (0..count).map(|_| OnceLock::new()).collect(),
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the location of a buffer. Allocates its piece of memory if this is the first use of
    /// the piece.
    #[inline]
    pub(crate) fn allocate(&self, buffer: u32) -> Result<Location<'_>, OsError> {
        let memory = match self.pieces[self.layout.piece_of(buffer)].get() {
            Some(memory) => memory,
            None => self.allocate_piece(buffer)?,
        };
        Ok(self.location(memory, buffer))
    }

    #[cold]
    fn allocate_piece(&self, buffer: u32) -> Result<&Registration, OsError> {
        let bytes = self.layout.size() * self.layout.same_piece(buffer).len();
        let memory = self.domain.allocate_buffers(bytes)?;
        // If another thread has allocated the piece in the meantime, the memory of that thread is
        // used, and the memory of this thread is dropped.
        Ok(self.pieces[self.layout.piece_of(buffer)].get_or_init(|| memory))
    }

    /// Returns the location of a buffer that was posted before.
    ///
    /// # Panics
    ///
    /// Panics if the buffer was never posted.
    #[inline(always)]
    pub(super) fn posted(&self, buffer: u32) -> Location<'_> {
        let memory = self.pieces[self.layout.piece_of(buffer)].get();
        self.location(memory.expect("a posted buffer must have memory"), buffer)
    }

    #[inline]
    fn location<'a>(&self, memory: &'a Registration, buffer: u32) -> Location<'a> {
        let offset = self.layout.offset(buffer);
        Location { memory, offset }
    }
}
