//! Registered buffers for messages above the eager size, and for those that the application fills itself.
//!
//! A connection keeps some of those that are free for its next messages, because registering memory takes time. What is kept
//! is memory that was allocated here and belongs to nobody else, so a kept registration never stands for memory that was unmapped and
//! mapped anew. Buffers that a peer may read are never used for another connection: whoever remembers their key sees what was meant
//! for it anyway.
//!
//! This file makes references to registered memory. That is sound because a [`Buffer`] is owned: whoever holds it is the only one that
//! accesses it, and it is moved into the books of [`Rings`](super::rings::Rings) while the device works on it, where nobody looks at its bytes. The
//! device writes only to buffers with local write access, only while a read that was posted for it is not complete; and a queue pair is
//! destroyed before the buffers in its books are let go. A peer can at most read a buffer that it was told of, whenever it likes.
#![allow(unsafe_code)]

use std::{
    fmt, slice,
    sync::{Arc, Mutex},
};

use super::link::lock;
use crate::{
    status::OsError,
    verbs::{AccessFlags, MemoryRegion, ProtectionDomain},
};

/// The smallest buffer that is registered: a smaller one would cost as much time.
const SMALLEST: usize = 64 << 10;
/// Up to here buffers are a power of two long, so that they fit many messages; longer ones end with their last page.
const LARGEST_CLASS: usize = 16 << 20;
/// How many free buffers are kept at most, so that looking through them stays cheap.
const MOST_KEPT: usize = 16;

/// Makes buffers and keeps free ones, up to a bound.
pub(crate) struct Pool {
    pd: ProtectionDomain,
    access: AccessFlags,
    /// How many bytes are kept at most.
    limit: u64,
    free: Mutex<Free>,
}

struct Free {
    regions: Vec<MemoryRegion>,
    bytes: u64,
    /// Whether nothing is kept any more.
    closed: bool,
}

impl Pool {
    pub(super) fn new(pd: &ProtectionDomain, access: AccessFlags, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            pd: pd.clone(),
            access,
            limit,
            free: Mutex::new(Free {
                regions: Vec::new(),
                bytes: 0,
                closed: false,
            }),
        })
    }

    /// A buffer of `len` bytes, at least 1, whose content is anything.
    pub(super) fn get(self: &Arc<Self>, len: usize) -> Result<Buffer, OsError> {
        match self.get_kept(len) {
            Some(buffer) => Ok(buffer),
            None => {
                let region = MemoryRegion::new(&self.pd, class(len), self.access)?;
                Ok(self.buffer(region, len))
            }
        }
    }

    /// A buffer of `len` bytes that is registered already, if there is one.
    pub(super) fn get_kept(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        self.take(len).map(|region| self.buffer(region, len))
    }

    fn buffer(self: &Arc<Self>, region: MemoryRegion, len: usize) -> Buffer {
        Buffer {
            region: Some(region),
            len,
            pool: Arc::clone(self),
        }
    }

    /// The free buffer that fits best, if one does without wasting more than half of it.
    fn take(&self, len: usize) -> Option<MemoryRegion> {
        let most = class(len).saturating_mul(2);
        let mut free = lock(&self.free);
        let (at, _) = free
            .regions
            .iter()
            .enumerate()
            .filter(|(_, region)| (len..=most).contains(&region.len()))
            .min_by_key(|(_, region)| region.len())?;
        let region = free.regions.swap_remove(at);
        free.bytes -= region.len() as u64;
        Some(region)
    }

    fn put_back(&self, region: MemoryRegion) {
        let mut free = lock(&self.free);
        let bytes = free.bytes + region.len() as u64;
        if !free.closed && bytes <= self.limit && free.regions.len() < MOST_KEPT {
            free.bytes = bytes;
            free.regions.push(region);
        } else {
            drop(free);
            drop(region);
        }
    }

    /// Gives all free buffers back to the system, and from now on every other as it becomes free.
    pub(super) fn close(&self) {
        let mut free = lock(&self.free);
        free.closed = true;
        free.bytes = 0;
        let regions = std::mem::take(&mut free.regions);
        drop(free);
        drop(regions);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// How long a buffer for `len` bytes is made.
fn class(len: usize) -> usize {
    if len <= LARGEST_CLASS {
        len.max(SMALLEST).next_power_of_two()
    } else {
        // What cannot be rounded up cannot be allocated either, which the system will say.
        len.checked_next_multiple_of(4096).unwrap_or(len)
    }
}

/// Registered memory that belongs to whoever holds this. It goes back to its pool when dropped.
pub(crate) struct Buffer {
    /// `None` only while it is dropped.
    region: Option<MemoryRegion>,
    len: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Uses only the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Whether it is one of `pool`'s, which only one connection's are.
    pub(super) fn is_of(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    pub(super) fn addr(&self) -> u64 {
        self.region.as_ref().map_or(0, MemoryRegion::addr)
    }

    pub(super) fn lkey(&self) -> u32 {
        self.region.as_ref().map_or(0, MemoryRegion::lkey)
    }

    pub(super) fn rkey(&self) -> u32 {
        self.region.as_ref().map_or(0, MemoryRegion::rkey)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let Some(region) = &self.region else {
            return &[];
        };
        // SAFETY: the region is at least `len` bytes long, initialised, and lives as long as `self`; nobody writes it while
        // there is a reference (top of this file).
        unsafe { slice::from_raw_parts(region.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(region) = &self.region else {
            return &mut [];
        };
        // SAFETY: as in `bytes`, and `self` is borrowed mutably, so this is the only reference.
        unsafe { slice::from_raw_parts_mut(region.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.pool.put_back(region);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_fit_and_waste_little() {
        assert_eq!(class(usize::MAX), usize::MAX);
        for len in [1, 100, 65536, 65537, 1 << 20, (16 << 20) + 1, 1 << 30] {
            let class = class(len);
            assert!(class >= len, "{len}");
            assert!(class <= SMALLEST.max(2 * len), "{len}");
        }
    }
}
