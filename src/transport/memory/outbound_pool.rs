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
//! A connection keeps some free memory for its next messages, because mapping memory takes time.
//!
//! This file creates references to memory that is registered at times. That is sound because an
//! [`OutboundBuffer`] is owned, so only its holder accesses it, and it returns references to its
//! bytes only while it is not registered. An [`Exposed`] returns none, and deregisters the memory
//! before it returns the buffer. The device only reads.
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

/// The length of the smallest piece. Mapping a smaller one would take the same time.
const SMALLEST: usize = 64 << 10;
/// The greatest length of pieces that are rounded up to a power of two, so that they fit many
/// messages. Longer pieces are rounded up to whole pages.
const LARGEST_CLASS: usize = 16 << 20;
/// The greatest number of free pieces that are kept, so that a search through them stays cheap.
const MAX_KEPT: usize = 16;

/// Allocates memory for messages, and keeps free memory up to a bound.
pub(crate) struct OutboundPool {
    /// The process that created the pool.
    process: Process,
    /// Whether exposed memory is registered with a device, and so pinned.
    pins: bool,
    /// The NUMA node on which memory is allocated, if the transport prefers one.
    node: Option<u32>,
    /// The greatest number of bytes that are kept.
    limit: u64,
    free: Mutex<Free>,
}

struct Free {
    pieces: Vec<Mapping>,
    bytes: u64,
    /// Whether free memory is returned to the system at once.
    closed: bool,
}

impl OutboundPool {
    pub(crate) fn new(limit: u64, pins: bool, node: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            process: Process::this(),
            pins,
            node,
            limit,
            free: Mutex::new(Free {
                pieces: Vec::new(),
                bytes: 0,
                closed: false,
            }),
        })
    }

    /// Returns a buffer of `len` bytes, with arbitrary content.
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
            mapping.prepare_for_device(self.node)?;
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

/// Returns the length of a piece for `len` bytes.
fn class(len: usize) -> usize {
    if len <= LARGEST_CLASS {
        len.max(SMALLEST).next_power_of_two()
    } else {
        // A length that cannot be rounded up cannot be mapped, and mmap(2) returns the error.
        len.checked_next_multiple_of(4096).unwrap_or(len)
    }
}

/// Memory that only the holder of this accesses, and that is not registered. It returns to its pool
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

    /// Whether the buffer belongs to `pool`, and so to the connection of the pool.
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

    /// Registers these bytes, so that the peers of queue pairs in `domain` can read them with the
    /// returned key. An error returns the buffer.
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

/// A message that the peer may READ. The registration covers exactly the bytes of the message.
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

    /// Deregisters the memory and returns it. The key becomes invalid.
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
        let pool = OutboundPool::new(256 << 10, false, None);
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
