//! Memory for messages that the application writes in place, and for copies of messages above the
//! eager size.
//!
//! Each large message has its own key. With this key the peer can read exactly the bytes of the
//! message. The key is valid from shortly before the announcement until shortly after the peer has
//! read the message. At other times the peer can read nothing, because the keys of earlier messages
//! are invalid. [`exposed`](super::exposed) describes the two ways to expose a message.
//!
//! A connection keeps some free memory for its next messages, because mapping memory takes time.
//!
//! This module creates references to memory that a peer can read while a message is exposed. This
//! is sound for the following reasons. Only the owner of an [`OutboundBuffer`] accesses the memory.
//! The buffer returns references to the bytes only while no peer has access. An [`Exposed`] returns
//! no references, and ends the peer's access before it returns the buffer. The device only reads
//! the memory.
#![allow(unsafe_code)]

use std::{
    fmt, mem,
    mem::ManuallyDrop,
    slice,
    sync::{Arc, Mutex},
};

use super::{
    domain::Domain,
    exposed::{Exposed, InUse, WINDOWS, Windowed},
};
use crate::{
    os::{Mapping, Process, lock},
    status::OsError,
    transport::budget::BudgetClient,
};

/// The minimum length of a piece in bytes. Mapping a shorter piece would take just as long.
const SMALLEST: usize = 64 << 10;
/// Lengths of up to this number of bytes are rounded up to a power of two, so that messages of
/// different lengths can reuse a piece. Larger lengths are rounded up to whole pages.
const LARGEST_CLASS: usize = 16 << 20;
/// The maximum number of free pieces that are kept. The number is small, so that a search through
/// the pieces is fast.
const MAX_KEPT: usize = 16;

/// The pool of memory for messages of one connection. It keeps free memory up to a limit.
pub(crate) struct OutboundPool {
    /// The process that created the pool.
    process: Process,
    /// Whether exposed memory is registered with a device and therefore pinned.
    pins: bool,
    /// The NUMA node on which memory is allocated; `None` if the transport prefers no node.
    node: Option<u32>,
    /// The maximum number of free bytes that are kept.
    limit: u64,
    /// The budget for memory that stays registered; `None` if the connection does not use memory
    /// windows. A connection uses windows only if its send queue has slots for binds and
    /// invalidations.
    windows: Option<Arc<BudgetClient>>,
    /// The number of windows in use.
    pub(super) in_use: InUse,
    free: Mutex<Free>,
}

struct Free {
    /// The free pieces, least recently used first.
    pieces: Vec<Piece>,
    bytes: u64,
    /// Whether the pool is closed. A closed pool frees unused memory immediately.
    closed: bool,
}

/// Memory for one message.
struct Piece {
    /// The registration and the window, if the memory stays registered. Dropped before the mapping.
    windowed: Option<Box<Windowed>>,
    mapping: Mapping,
}

impl Free {
    fn remove(&mut self, at: usize) -> Piece {
        let piece = self.pieces.remove(at);
        self.bytes -= piece.mapping.len() as u64;
        piece
    }

    fn has_room(&self, len: usize, limit: u64) -> bool {
        self.bytes + len as u64 <= limit && self.pieces.len() < MAX_KEPT
    }
}

impl OutboundPool {
    pub(crate) fn new(
        limit: u64,
        pins: bool,
        node: Option<u32>,
        windows: Option<Arc<BudgetClient>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            process: Process::this(),
            pins,
            node,
            limit,
            windows,
            in_use: InUse::default(),
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
            None => Piece {
                windowed: None,
                mapping: self.map(class(len))?,
            },
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

    /// Returns whether messages can be exposed by memory windows.
    pub(super) fn has_windows(&self) -> bool {
        self.windows.is_some()
    }

    /// Registers the memory of a piece, and allocates a window for the piece. The memory stays
    /// registered for later messages. Returns `None` if each message in this piece has to be
    /// registered separately.
    fn windowed(&self, mapping: &Mapping, domain: &Domain) -> Option<Box<Windowed>> {
        let client = self.windows.as_ref()?;
        let len = mapping.len();
        if len as u64 > self.limit / u64::from(WINDOWS) {
            return None;
        }
        let kept = client.keep(len as u64)?;
        // SAFETY: the bytes stay mapped and initialised until the region is dropped, because
        // `Windowed` is dropped before its mapping and returns no handle of the region. Only
        // `Exposed` binds the window, and no reference to the bytes exists while an `Exposed` owns
        // them (see the top of this file).
        let windowed = unsafe { domain.expose_by_window(mapping.start().as_ptr(), len) };
        let (region, window) = windowed.ok()??;
        Some(Windowed::new(region, window, kept))
    }

    /// Takes the shortest free piece with room for `len` bytes. Among pieces of equal length,
    /// prefers a registered one. Returns `None` if each free piece is too short, or is more than
    /// twice as long as a new piece for `len` bytes would be.
    fn take(&self, len: usize) -> Option<Piece> {
        let most = class(len).saturating_mul(2);
        let mut free = lock(&self.free);
        let (at, _) = free
            .pieces
            .iter()
            .enumerate()
            .filter(|(_, piece)| (len..=most).contains(&piece.mapping.len()))
            .min_by_key(|(_, piece)| (piece.mapping.len(), piece.windowed.is_none()))?;
        Some(free.remove(at))
    }

    fn put_back(&self, piece: Piece) {
        let len = piece.mapping.len();
        let mut dropped = Vec::new();
        let mut free = lock(&self.free);
        // A registered piece displaces other pieces, because creating a registered piece needs two
        // more system calls than creating an unregistered one. Unregistered pieces are removed
        // first. If none remains, the least recently used piece is removed.
        while piece.windowed.is_some() && !free.has_room(len, self.limit) && !free.pieces.is_empty()
        {
            let unregistered = free.pieces.iter().position(|one| one.windowed.is_none());
            let one = free.remove(unregistered.unwrap_or(0));
            dropped.push(one);
        }
        if !free.closed && free.has_room(len, self.limit) {
            free.bytes += len as u64;
            free.pieces.push(piece);
        } else {
            dropped.push(piece);
        }
        drop(free);
        drop(dropped);
    }

    /// Frees unused memory now, and memory in use as soon as it is released.
    pub(crate) fn close(&self) {
        let mut free = lock(&self.free);
        free.closed = true;
        free.bytes = 0;
        let pieces = mem::take(&mut free.pieces);
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

/// Returns the length of a new piece for `len` bytes.
fn class(len: usize) -> usize {
    if len <= LARGEST_CLASS {
        len.max(SMALLEST).next_power_of_two()
    } else {
        // If the length cannot be rounded up, mmap(2) cannot map it either, and returns the error.
        len.checked_next_multiple_of(4096).unwrap_or(len)
    }
}

/// Memory for one message. Only its owner accesses the memory. Dropping the buffer returns the
/// memory to the pool.
pub(crate) struct OutboundBuffer {
    /// The memory; `None` only during the drop.
    piece: Option<Piece>,
    len: usize,
    pool: Arc<OutboundPool>,
}

impl OutboundBuffer {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Shortens the message to the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns whether the buffer belongs to `pool`, and thus to the connection of this pool.
    pub(crate) fn is_of(&self, pool: &Arc<OutboundPool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let Some(piece) = &self.piece else {
            return &[];
        };
        // SAFETY: the piece is at least `len` bytes long, was zeroed when it was mapped, and
        // outlives `self`. No code writes to it while a reference exists (see the top of this
        // file).
        unsafe { slice::from_raw_parts(piece.mapping.start().as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(piece) = &self.piece else {
            return &mut [];
        };
        // SAFETY: as in `bytes`. In addition, `self` is borrowed mutably, so no other reference to
        // the bytes exists.
        unsafe { slice::from_raw_parts_mut(piece.mapping.start().as_ptr(), self.len) }
    }

    /// Exposes the bytes to the peer. The peer reads the bytes with the key of the result. `domain`
    /// is the domain of the connection's queue pair. On failure, returns the buffer and the error.
    pub(crate) fn expose(self, domain: &Domain) -> Result<Exposed, (Self, OsError)> {
        let memory = match Exposed::windowed(self, domain) {
            Ok(exposed) => return Ok(exposed),
            Err(memory) => memory,
        };
        let start = memory
            .piece
            .as_ref()
            .map_or(std::ptr::null_mut(), |piece| piece.mapping.start().as_ptr());
        // SAFETY: the bytes stay mapped and initialised until the region is dropped, because
        // `Exposed` drops the region before the memory and returns no handle of the region. While
        // the region exists, no reference to the bytes exists (see the top of this file).
        match unsafe { domain.expose(start, memory.len) } {
            Ok(region) => Ok(Exposed::registered(region, memory)),
            Err(error) => Err((memory, error)),
        }
    }

    pub(super) fn pool(&self) -> &OutboundPool {
        &self.pool
    }

    /// Takes the registration and the window out of the piece. If the piece is not registered,
    /// registers the piece and allocates a window. Returns `None` if the piece cannot stay
    /// registered.
    pub(super) fn take_windowed(&mut self, domain: &Domain) -> Option<Box<Windowed>> {
        let piece = self.piece.as_mut()?;
        piece
            .windowed
            .take()
            .or_else(|| self.pool.windowed(&piece.mapping, domain))
    }

    /// Puts the registration and the window back into the piece. The window must not be bound.
    pub(super) fn put_windowed(&mut self, windowed: Box<Windowed>) {
        if let Some(piece) = &mut self.piece {
            piece.windowed = Some(windowed);
        }
    }
}

impl Drop for OutboundBuffer {
    fn drop(&mut self) {
        let Some(mut piece) = self.piece.take() else {
            return;
        };
        if self.pool.process.is_this() {
            self.pool.put_back(piece);
        } else {
            // This is a forked child process, and the memory is a copy. Dropping the registration
            // would take the locks of the pool or the budget. At the fork, a thread of the parent
            // may have held these locks. Therefore the registration is leaked.
            let _leaked = ManuallyDrop::new(piece.windowed.take());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_and_waste_little() {
        assert_eq!(class(usize::MAX), usize::MAX);
        for len in [1, 100, 65536, 65537, 1 << 20, (16 << 20) + 1, 1 << 30] {
            let class = class(len);
            assert!(class >= len, "a piece must hold all {len} bytes");
            assert!(
                class <= SMALLEST.max(2 * len),
                "a piece for {len} bytes must not be longer than twice this length or the minimum"
            );
        }
    }

    #[test]
    fn free_pieces_are_reused_within_the_bound() {
        let pool = OutboundPool::new(256 << 10, false, None, None);
        let mut first = pool.get(140_000).unwrap();
        first.bytes_mut().fill(7);
        first.truncate(10);
        assert_eq!(first.bytes(), [7; 10]);
        drop(first);
        assert_eq!(pool.get(200_000).unwrap().bytes()[..140_000], [7; 140_000]);
        drop(pool.get(1 << 20).unwrap());
        assert_eq!(
            lock(&pool.free).pieces.len(),
            1,
            "a piece longer than the limit must not be kept"
        );
        let kept = pool.get(1).unwrap();
        assert_eq!(
            kept.bytes(),
            [0],
            "a piece that is much too long must not be reused"
        );
        pool.close();
        drop(kept);
        assert!(lock(&pool.free).pieces.is_empty());
    }
}
