//! Memory for messages that the application fills itself, and for copies of those above the eager
//! size.
//!
//! Only exposed memory is registered: a peer can read exactly the bytes of a large message, with a
//! key of its own, from before the message is announced until the peer has taken it. Before that
//! and afterwards it can read nothing, even with the keys that it remembers. Memory windows would
//! be a cheaper source of such keys, but those of software RoCE are unusable: they check the bounds
//! of their region instead of their own. A peer that invalidates an unbound window by its key
//! crashes the other kernel.
//!
//! A connection keeps some of the memory that is free for its next messages, because mapping it
//! takes time.
//!
//! This file makes references to memory that is registered at times. That is sound because an
//! [`OutboundBuffer`] is owned, so only its holder accesses it, and it gives its bytes out only
//! while it is not registered. An [`Exposed`] gives none out, and deregisters them before it
//! returns the memory. The device only reads.
#![allow(unsafe_code)]

use std::{
    fmt, slice,
    sync::{Arc, Mutex},
};

use super::domain::{Domain, Registration};
use crate::{
    os::{Mapping, Process, lock},
    proto::Descriptor,
    status::OsError,
};

/// The smallest piece: a smaller one would take the same time.
const SMALLEST: usize = 64 << 10;
/// Up to here pieces are a power of two long, so that they fit many messages; longer ones end with
/// their last page.
const LARGEST_CLASS: usize = 16 << 20;
/// How many free pieces are kept at most, so that looking through them stays cheap.
const MAX_KEPT: usize = 16;

/// Makes memory for messages and keeps free memory, up to a bound.
pub(crate) struct OutboundPool {
    /// The process that made it.
    process: Process,
    /// Whether a device uses exposed memory.
    pins: bool,
    /// How many bytes are kept at most.
    limit: u64,
    free: Mutex<Free>,
}

struct Free {
    pieces: Vec<Mapping>,
    bytes: u64,
    /// Whether free memory goes to the system at once.
    closed: bool,
}

impl OutboundPool {
    pub(crate) fn new(limit: u64, pins: bool) -> Arc<Self> {
        Arc::new(Self {
            process: Process::this(),
            pins,
            limit,
            free: Mutex::new(Free {
                pieces: Vec::new(),
                bytes: 0,
                closed: false,
            }),
        })
    }

    /// Memory of `len` bytes, whose content is anything.
    pub(crate) fn get(self: &Arc<Self>, len: usize) -> Result<OutboundBuffer, OsError> {
        let piece = match self.take(len) {
            Some(piece) => piece,
            None => self.map(class(len))?,
        };
        Ok(OutboundBuffer {
            piece: Some(piece),
            len,
            pool: Arc::clone(self),
        })
    }

    fn map(&self, len: usize) -> Result<Mapping, OsError> {
        let mapping = Mapping::new(len)?;
        if self.pins {
            mapping.prepare_for_device()?;
        }
        Ok(mapping)
    }

    /// Takes the shortest free piece that has room for `len` bytes; `None` if each such piece is
    /// more than twice as long as the class of `len`.
    fn take(&self, len: usize) -> Option<Mapping> {
        let most = class(len).saturating_mul(2);
        let mut free = lock(&self.free);
        let (at, _) = free
            .pieces
            .iter()
            .enumerate()
            .filter(|(_, piece)| (len..=most).contains(&piece.len()))
            .min_by_key(|(_, piece)| piece.len())?;
        let piece = free.pieces.swap_remove(at);
        free.bytes -= piece.len() as u64;
        Some(piece)
    }

    fn put_back(&self, piece: Mapping) {
        let mut free = lock(&self.free);
        let bytes = free.bytes + piece.len() as u64;
        if !free.closed && bytes <= self.limit && free.pieces.len() < MAX_KEPT {
            free.bytes = bytes;
            free.pieces.push(piece);
        } else {
            drop(free);
            drop(piece);
        }
    }

    /// Returns free memory to the system, and later memory as soon as it is free.
    pub(crate) fn close(&self) {
        let mut free = lock(&self.free);
        free.closed = true;
        free.bytes = 0;
        let pieces = std::mem::take(&mut free.pieces);
        drop(free);
        drop(pieces);
    }
}

impl fmt::Debug for OutboundPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundPool")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// How long a piece for `len` bytes is made.
fn class(len: usize) -> usize {
    if len <= LARGEST_CLASS {
        len.max(SMALLEST).next_power_of_two()
    } else {
        // A length that cannot be rounded up cannot be mapped, and mmap(2) returns the error.
        len.checked_next_multiple_of(4096).unwrap_or(len)
    }
}

/// Memory that belongs to the holder of this, and that no device knows of. It goes back to its pool
/// when dropped.
pub(crate) struct OutboundBuffer {
    /// `None` only while it is dropped.
    piece: Option<Mapping>,
    len: usize,
    pool: Arc<OutboundPool>,
}

impl OutboundBuffer {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Uses only the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Whether it is one of `pool`'s, which only one connection's are.
    pub(crate) fn is_of(&self, pool: &Arc<OutboundPool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let Some(piece) = &self.piece else {
            return &[];
        };
        // SAFETY: the piece is at least `len` bytes long, zeroed when it was mapped, and outlives
        // `self`; no code writes it while there is a reference (top of this file).
        unsafe { slice::from_raw_parts(piece.start().as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(piece) = &self.piece else {
            return &mut [];
        };
        // SAFETY: as in `bytes`, and `self` is borrowed mutably, so this is the only reference.
        unsafe { slice::from_raw_parts_mut(piece.start().as_ptr(), self.len) }
    }

    /// Lets the peers of queue pairs in `domain` read these bytes with the returned key. An error
    /// contains the memory.
    pub(crate) fn expose(self, domain: &Domain) -> Result<Exposed, (Self, OsError)> {
        let start = self
            .piece
            .as_ref()
            .map_or(std::ptr::null_mut(), |piece| piece.start().as_ptr());
        // SAFETY: the bytes stay mapped and initialised until the region is gone, since `Exposed`
        // drops it first and hands out no handle of it; no reference to them exists until then (top
        // of this file).
        let registered = unsafe { domain.expose(start, self.len) };
        match registered {
            Ok(region) => Ok(Exposed {
                region,
                memory: self,
            }),
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for OutboundBuffer {
    fn drop(&mut self) {
        // In a child the memory is a copy, and a thread of the parent may hold the pool's lock.
        if let Some(piece) = self.piece.take()
            && self.pool.process.is_this()
        {
            self.pool.put_back(piece);
        }
    }
}

impl fmt::Debug for OutboundBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A message that the peer may read, from exactly these bytes.
#[derive(Debug)]
pub(crate) struct Exposed {
    /// Dropped before `memory`: no peer can read after the deregistration.
    region: Registration,
    memory: OutboundBuffer,
}

impl Exposed {
    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor {
            addr: self.region.addr(),
            len: self.memory.len as u64,
            rkey: self.region.rkey(),
        }
    }

    /// Takes the memory back. The key becomes invalid.
    pub(crate) fn take_back(self) -> OutboundBuffer {
        let Self { region, memory } = self;
        drop(region);
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_and_waste_little() {
        assert_eq!(class(usize::MAX), usize::MAX);
        for len in [1, 100, 65536, 65537, 1 << 20, (16 << 20) + 1, 1 << 30] {
            let class = class(len);
            assert!(class >= len, "{len}");
            assert!(class <= SMALLEST.max(2 * len), "{len}");
        }
    }

    #[test]
    fn free_pieces_are_reused_within_the_bound() {
        let pool = OutboundPool::new(256 << 10, false);
        let mut first = pool.get(140_000).unwrap();
        first.bytes_mut().fill(7);
        first.truncate(10);
        assert_eq!(first.bytes(), [7; 10]);
        drop(first);
        assert_eq!(pool.get(200_000).unwrap().bytes()[..140_000], [7; 140_000]);
        drop(pool.get(1 << 20).unwrap());
        assert_eq!(lock(&pool.free).pieces.len(), 1, "the bound");
        let kept = pool.get(1).unwrap();
        assert_eq!(kept.bytes(), [0], "the other would waste too much");
        pool.close();
        drop(kept);
        assert!(lock(&pool.free).pieces.is_empty());
    }
}
