//! Memory into which the peer's large messages are read.
//!
//! Each message has one mapping of its whole length. The mapping becomes accessible in parts as
//! chunks are read, so the announcement of a message reserves only address space. The device can
//! access only the registered parts of the mapping, which are called *steps*. Each step is
//! registered immediately before the first read into it, and deregistered when this read has
//! completed. If the connection's cache and the budget have room for the whole message, its steps
//! stay registered and later messages reuse the mapping, because registering takes time. On iWARP
//! no step stays registered, because peers could write to it.
//!
//! This module creates references to memory that was registered. This is sound for the following
//! reasons. An [`InboundBuffer`] has one owner. While bytes of the message are missing, the owner
//! is [`WorkQueues`](crate::transport::queues::WorkQueues), which does not read the bytes.
//! `WorkQueues` gives the buffer away when all reads have completed, or drops the buffer after the
//! queue pair is destroyed. Only the local device can write to steps that stay registered, and it
//! writes only for posted reads. A registration pins the physical pages. So even if deregistering
//! fails, the registration never refers to memory that is mapped later at the same address.
#![allow(unsafe_code)]

use std::{
    fmt, ptr, slice,
    sync::{Arc, Mutex},
};

use super::domain::{Domain, Registration};
use crate::{
    os::{Mapping, lock},
    proto::{LONGEST_CHUNK, Part, SHORTEST_CHUNK},
    status::OsError,
    transport::budget::{BudgetClient, Charge},
};

/// Lengths of up to this number of bytes are rounded up to a power of two, so that messages of
/// different lengths can reuse a mapping. Larger lengths are rounded up to a multiple of 64 KiB.
const LARGEST_CLASS: usize = 16 << 20;
/// While a message arrives, its mapping is made accessible in units of this number of bytes.
const USABLE_UNIT: usize = 1 << 20;
/// The maximum number of free mappings that are kept. The number is small, so that a search through
/// the mappings is fast.
const MAX_KEPT: usize = 16;

/// The pool of memory into which one connection reads large messages. It keeps some free mappings.
pub(crate) struct InboundPool {
    domain: Domain,
    client: Arc<BudgetClient>,
    /// The maximum total length in bytes of the mappings that are kept.
    limit: u64,
    spare: Mutex<Spare>,
}

#[derive(Default)]
struct Spare {
    /// The free mappings, least recently used first.
    free: Vec<Memory>,
    /// The number of bytes in the free mappings, and in the mappings in use that will be kept.
    kept: u64,
    /// Whether the pool is closed. A closed pool frees unused memory immediately.
    closed: bool,
}

/// A mapping and its registered steps.
struct Memory {
    /// The registered steps. Dropped before the mapping and the charge.
    steps: Vec<Step>,
    mapping: Mapping,
    /// The number of accessible bytes, from the start of the mapping.
    usable: usize,
    /// The charge to the budget, if the steps stay registered.
    kept: Option<Charge>,
}

impl Memory {
    /// Makes at least the first `end` bytes of the mapping accessible.
    fn make_usable(&mut self, end: usize) -> Result<(), OsError> {
        if end > self.usable {
            let end = end.next_multiple_of(USABLE_UNIT).min(self.mapping.len());
            self.mapping.make_usable(self.usable..end)?;
            self.usable = end;
        }
        Ok(())
    }
}

/// A registered part of a mapping.
struct Step {
    region: Registration,
    offset: usize,
    len: usize,
    /// The charge to the budget. `None` if the region stays registered after the read into it, or
    /// if the transport pins no memory. Dropped after the region.
    _pinned: Option<Charge>,
}

impl Step {
    fn end(&self) -> usize {
        self.offset + self.len
    }
}

impl InboundPool {
    /// Creates a pool that registers memory in `domain`, and keeps at most `limit` bytes
    /// registered.
    pub(crate) fn new(domain: &Domain, limit: u64, client: Arc<BudgetClient>) -> Arc<Self> {
        Arc::new(Self {
            domain: domain.clone(),
            client,
            limit: if domain.peers_write_read_targets() {
                0
            } else {
                limit
            },
            spare: Mutex::default(),
        })
    }

    /// Returns a buffer for a message of `len` bytes. Memory is allocated only for the parts that
    /// are [prepared](InboundBuffer::prepare).
    pub(crate) fn allocate(self: &Arc<Self>, len: usize) -> Result<Box<InboundBuffer>, OsError> {
        let memory = match self.take(len) {
            Some(memory) => memory,
            None => {
                let class = class(len);
                let (mapping, usable) = if class <= USABLE_UNIT {
                    (Mapping::new(class)?, class)
                } else {
                    (Mapping::reserve(class)?, 0)
                };
                if self.domain.pins() {
                    mapping.prepare_for_device(self.domain.numa_node())?;
                }
                let kept = self.keep(mapping.len() as u64);
                Memory {
                    steps: Vec::new(),
                    mapping,
                    usable,
                    kept,
                }
            }
        };
        // A channel reserves memory for the completion of each message that may arrive. The buffer
        // is boxed to keep these completions small.
        Ok(Box::new(InboundBuffer {
            memory: Some(memory),
            len,
            charged: 0,
            pool: Arc::clone(self),
            held: None,
        }))
    }

    /// Charges the budget for a copy of `len` stream bytes that the application has not read.
    /// Returns `None` if the budget does not grant the charge immediately.
    pub(crate) fn place_copy(&self, len: u64) -> Option<Charge> {
        self.client.copy(len)
    }

    /// Makes the budget notify this connection when a connection releases memory. Called after the
    /// operating system has refused memory.
    pub(crate) fn await_memory(&self) {
        self.client.await_memory();
    }

    /// Returns true if a claim for message memory is waiting, and might be granted as soon as the
    /// peer's host releases memory. The claim may be that of another connection.
    pub(crate) fn is_contended(&self) -> bool {
        self.client.is_contended()
    }

    /// Cancels the connection's pending claims on the budget.
    pub(crate) fn leave(&self) {
        self.client.leave();
    }

    /// Takes the shortest free mapping that is long enough. Returns `None` if each free mapping is
    /// too short, or is more than twice as long as a new mapping for `len` bytes would be.
    fn take(&self, len: usize) -> Option<Memory> {
        let most = class(len).saturating_mul(2);
        let mut spare = lock(&self.spare);
        let (at, _) = spare
            .free
            .iter()
            .enumerate()
            .filter(|(_, memory)| (len..=most).contains(&memory.mapping.len()))
            .min_by_key(|(_, memory)| memory.mapping.len())?;
        Some(spare.free.remove(at))
    }

    /// Charges the budget for a new mapping of `bytes` bytes that stays registered. If the mapping
    /// would exceed the limit of the pool, first frees unused mappings, because none of them fits
    /// the message of the caller. Returns `None` if the budget or the pool's limit does not allow
    /// the new mapping to stay registered.
    fn keep(&self, bytes: u64) -> Option<Charge> {
        if bytes > self.limit {
            return None;
        }
        let mut dropped = Vec::new();
        let mut spare = lock(&self.spare);
        while spare.kept + bytes > self.limit && !spare.free.is_empty() {
            let memory = spare.free.remove(0);
            spare.kept -= memory.mapping.len() as u64;
            dropped.push(memory);
        }
        let fits = !spare.closed && spare.kept + bytes <= self.limit;
        drop(spare);
        drop(dropped);
        let charge = fits.then(|| self.client.keep(bytes)).flatten()?;
        lock(&self.spare).kept += bytes;
        Some(charge)
    }

    fn put_back(&self, memory: Memory) {
        let bytes = memory.mapping.len() as u64;
        if memory.kept.is_none() {
            return;
        }
        let mut spare = lock(&self.spare);
        if !spare.closed && spare.free.len() < MAX_KEPT {
            spare.free.push(memory);
        } else {
            spare.kept = spare.kept.saturating_sub(bytes);
            drop(spare);
            drop(memory);
        }
    }

    /// Frees all unused mappings. Returns `false` if there were none.
    fn free_unused(&self) -> bool {
        let mut spare = lock(&self.spare);
        let free = std::mem::take(&mut spare.free);
        spare.kept -= free
            .iter()
            .map(|memory| memory.mapping.len() as u64)
            .sum::<u64>();
        drop(spare);
        !free.is_empty()
    }

    /// Frees unused memory now, and memory in use as soon as it is released.
    pub(crate) fn close(&self) {
        self.leave();
        lock(&self.spare).closed = true;
        self.free_unused();
    }
}

impl fmt::Debug for InboundPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboundPool")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// Returns the number of bytes in the pages of `len` bytes.
fn pages(len: usize) -> u64 {
    len.next_multiple_of(4096) as u64
}

/// Returns the length of a mapping for `len` bytes.
fn class(len: usize) -> usize {
    let len = len.max(SHORTEST_CHUNK as usize);
    let class = if len <= LARGEST_CLASS {
        len.checked_next_power_of_two()
    } else {
        len.checked_next_multiple_of(SHORTEST_CHUNK as usize)
    };
    // If the length cannot be rounded up, mmap(2) cannot map it either, and returns the error.
    class.unwrap_or(len)
}

/// The memory of one large message. The library reads the peer's bytes into it, and the application
/// accesses the message in place.
pub(crate) struct InboundBuffer {
    /// The mapping; `None` only during the drop.
    memory: Option<Memory>,
    len: usize,
    /// The number of message bytes that are charged to the budget. The charge in `held` is this
    /// number, rounded up to whole pages.
    charged: usize,
    pool: Arc<InboundPool>,
    /// The charge to the budget. Dropped after the memory.
    held: Option<Charge>,
}

impl InboundBuffer {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Prepares up to `len` bytes at `offset` for a read. Returns the number of prepared bytes. If
    /// the budget has no room, returns `None`, and the connection's engine gets a notice when the
    /// budget has room. The caller prepares the parts of a message in ascending order.
    pub(crate) fn prepare(&mut self, offset: usize, len: usize) -> Result<Option<usize>, OsError> {
        assert!(
            len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.len),
            "a read must not be empty or exceed the announced message"
        );
        if !self.hold(offset + len) {
            return Ok(None);
        }
        let Some(memory) = &mut self.memory else {
            return Ok(None);
        };
        let covers = |step: &&Step| (step.offset..step.end()).contains(&offset);
        if let Some(step) = memory.steps.iter().find(covers) {
            let ready = step.end() - offset;
            // If the step begins before this chunk, the read of the previous chunk may still use
            // the step. So the step stays, and at most its remaining bytes are prepared. If the
            // step begins at the start of this chunk and is too short, it is replaced below.
            if ready >= len || step.offset < offset {
                return Ok(Some(ready.min(len)));
            }
        }
        let capacity = memory.mapping.len() - offset;
        let (long, pinned) = match &memory.kept {
            // The length of the step is rounded up, so that later messages with longer chunks can
            // reuse the step.
            Some(_) => (
                len.next_power_of_two()
                    .max(SHORTEST_CHUNK as usize)
                    .min(capacity),
                None,
            ),
            None => {
                let long = len.next_multiple_of(4096).min(capacity);
                if self.pool.domain.pins() {
                    match self.pool.client.pin(long as u64) {
                        Some(pinned) => (long, Some(pinned)),
                        None => return Ok(None),
                    }
                } else {
                    (long, None)
                }
            }
        };
        memory.make_usable(offset + long)?;
        // Remove the steps that overlap the new step. They are not in use, because no read at or
        // after `offset` is in progress.
        memory
            .steps
            .retain(|step| step.end() <= offset || step.offset >= offset + long);
        // SAFETY: the `long` bytes at `offset` lie inside the mapping.
        let start = unsafe { memory.mapping.start().as_ptr().add(offset) };
        let domain = &self.pool.domain;
        // SAFETY: the step contains the only handle of the registration, and steps are dropped
        // before their mapping. So the mapping outlives the registration. While the device may
        // write the bytes, no reference to them exists, and no other code accesses them (see the
        // top of this file).
        let register = || unsafe { domain.register_read_target(start, long) };
        let region = match register() {
            // If there is too little memory, free this connection's unused mappings and try again.
            Err(error) if error.errno == libc::ENOMEM && self.pool.free_unused() => register(),
            result => result,
        };
        match region {
            Ok(region) => {
                memory.steps.push(Step {
                    region,
                    offset,
                    len: long,
                    _pinned: pinned,
                });
                Ok(Some(len))
            }
            Err(error) => {
                if let Some(pinned) = pinned {
                    pinned.cancel();
                }
                Err(error)
            }
        }
    }

    /// Copies bytes to their position in the message. If the budget has no room, returns `false`,
    /// and the connection's engine gets a notice when the budget has room. The caller copies the
    /// bytes of a message in ascending order.
    pub(crate) fn fill(&mut self, offset: usize, bytes: &[u8]) -> Result<bool, OsError> {
        let end = offset + bytes.len();
        assert!(
            end <= self.len,
            "the copied bytes must not exceed the announced message"
        );
        if !self.hold(end) {
            return Ok(false);
        }
        let Some(memory) = &mut self.memory else {
            return Ok(false);
        };
        memory.make_usable(end)?;
        let to = memory.mapping.start().as_ptr().wrapping_add(offset);
        // SAFETY: the first `end` bytes of the mapping are accessible. No reference to them exists
        // while the message is incomplete. No device writes to them, because no read into this
        // message is posted. The TCP transport writes only the bytes of other fragments.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(true)
    }

    /// Prepares the memory of the whole message, if the message is not longer than a chunk and the
    /// budget has room for it now. Otherwise the memory is prepared as the bytes are
    /// [copied](Self::fill). Called before the first copy.
    pub(crate) fn prepare_whole(&mut self) -> Result<(), OsError> {
        // With a longer message, a peer could occupy much memory by sending a few bytes.
        if self.charged == 0
            && self.len as u64 <= LONGEST_CHUNK
            && let Some(charge) = self.pool.client.try_hold(pages(self.len))
        {
            self.held = Some(charge);
            self.charged = self.len;
            if let Some(memory) = &mut self.memory {
                memory.make_usable(self.len)?;
            }
        }
        Ok(())
    }

    /// Returns a pointer to the bytes from `offset` to the end of the message, and their number.
    /// Returns `None` if there are no such bytes, or if their memory is not prepared.
    pub(crate) fn rest(&self, offset: usize) -> Option<(*mut u8, usize)> {
        let memory = self.memory.as_ref()?;
        let is_prepared = self.charged == self.len && memory.usable >= self.len;
        let start = memory.mapping.start().as_ptr().wrapping_add(offset);
        (is_prepared && offset < self.len).then(|| (start, self.len - offset))
    }

    /// Charges the first `end` bytes of the message to the budget. Returns `false` if the budget
    /// has no room for them.
    fn hold(&mut self, end: usize) -> bool {
        if end <= self.charged {
            return true;
        }
        let bytes = pages(end) - pages(self.charged);
        let part = Part::of(self.len, self.charged, end);
        let client = &self.pool.client;
        let has = bytes == 0 || client.hold(&mut self.held, bytes, part);
        if has {
            self.charged = end;
        }
        has
    }

    /// Returns a pointer to a chunk, and the local key of the memory. Returns `None` if the chunk
    /// was not prepared.
    pub(crate) fn chunk(&self, offset: usize, len: usize) -> Option<(*mut u8, u32)> {
        let steps = self.memory.as_ref().map(|memory| &memory.steps)?;
        let step = steps
            .iter()
            .find(|step| step.offset <= offset && offset + len <= step.end())?;
        let start = step.region.as_ptr().wrapping_add(offset - step.offset);
        Some((start, step.region.lkey()))
    }

    /// Handles the completion of a read. `offset` is the start of the chunk. Deregisters the
    /// chunk's memory if the memory does not stay registered.
    pub(crate) fn chunk_read(&mut self, offset: usize) {
        if let Some(memory) = &mut self.memory
            && memory.kept.is_none()
        {
            memory.steps.retain(|step| step.offset != offset);
        }
    }

    /// Returns the bytes of the message. Called only after all bytes have been read.
    pub(crate) fn bytes(&self) -> &[u8] {
        let Some(memory) = &self.memory else {
            return &[];
        };
        assert!(
            self.len <= memory.usable,
            "all chunks must be prepared before the bytes are accessed"
        );
        // SAFETY: the first `usable` bytes of the mapping are accessible, were zeroed when they
        // were mapped, and outlive `self`. The device does not write to them while a reference
        // exists (see the top of this file).
        unsafe { slice::from_raw_parts(memory.mapping.start().as_ptr(), self.len) }
    }
}

impl Drop for InboundBuffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.put_back(memory);
        }
    }
}

impl fmt::Debug for InboundBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboundBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_fit_and_waste_little() {
        assert_eq!(class(usize::MAX), usize::MAX);
        for len in [1, 100, 65536, 65537, 1 << 20, (16 << 20) + 1, 1 << 30] {
            let class = class(len);
            assert!(class >= len, "a mapping must hold all {len} bytes");
            assert!(
                class <= (64 << 10).max(2 * len),
                "a mapping for {len} bytes must not be longer than twice this length or 64 KiB"
            );
        }
    }
}
