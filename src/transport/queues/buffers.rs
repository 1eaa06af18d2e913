use std::sync::OnceLock;

use super::layout::Layout;
use crate::{
    remote_access::RemoteAccess,
    status::OsError,
    transport::memory::{Domain, Registration},
};

/// The receive and send buffers of one connection.
///
/// A piece of their memory is allocated when the first of its buffers is needed.
#[derive(Debug)]
pub(crate) struct Buffers {
    domain: Domain,
    layout: Layout,
    places: Box<[OnceLock<Place>]>,
}

/// The place of a buffer: its piece of memory, and its offset there in bytes.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) memory: Registration,
    pub(crate) offset: usize,
}

impl Buffers {
    pub(super) fn new(domain: &Domain, layout: Layout) -> Self {
        Self {
            domain: domain.clone(),
            layout,
            places: (0..layout.count()).map(|_| OnceLock::new()).collect(),
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the place of a buffer, and allocates its piece of memory if it is the first there.
    #[inline]
    pub(crate) fn allocate(&self, buffer: u32) -> Result<&Place, OsError> {
        match self.places[buffer as usize].get() {
            Some(place) => Ok(place),
            None => self.allocate_piece(buffer),
        }
    }

    #[cold]
    fn allocate_piece(&self, buffer: u32) -> Result<&Place, OsError> {
        let (piece, size) = (self.layout.beside(buffer), self.layout.size());
        let memory = self
            .domain
            .allocate(size * piece.len(), RemoteAccess::NONE)?;
        let place = |number: u32| {
            // Another thread may have been faster. Its place is as good.
            self.places[number as usize].get_or_init(|| Place {
                memory: memory.clone(),
                offset: size * (number - piece.start) as usize,
            })
        };
        for number in piece.clone() {
            place(number);
        }
        Ok(place(buffer))
    }

    /// Returns the place of a buffer that was posted.
    ///
    /// # Panics
    ///
    /// If it never was.
    #[inline]
    pub(super) fn posted(&self, buffer: u32) -> &Place {
        let place = self.places[buffer as usize].get();
        place.expect("a buffer is posted with its memory")
    }
}
