//! Memory into which the peer's large messages are read.
//!
//! A message has one mapping of its whole length. Its pages are made accessible as chunks are read,
//! so an announcement costs address space only. The device may access only the *steps* of the
//! mapping: each step is registered right before the first read into it, and deregistered when that
//! has completed. If the connection's cache and the process's budget have room for the whole
//! message, its steps stay registered, and the mapping serves further messages, because registering
//! takes time. On iWARP peers could write to registered memory, so no step stays registered there.
//!
//! This file creates references to memory that was registered. That is sound because an
//! [`InboundBuffer`] is owned: while reads into it are in progress it is in the requests in flight
//! of [`WorkQueues`](crate::transport::queues::WorkQueues), in which no code reads its bytes. It is
//! taken out of them when all reads have completed, or after the queue pair is destroyed. Steps
//! that stay registered allow only the local device to write, which writes for posted reads alone.
//! A registration holds the pages themselves. So even a registration that could not be ended never
//! refers to memory that is mapped later at the same address.
#![allow(unsafe_code)]

use std::{
    fmt, ptr, slice,
    sync::{Arc, Mutex},
};

use super::domain::{Domain, Registration};
use crate::{
    os::{Mapping, lock},
    proto::{Part, SHORTEST_CHUNK},
    status::OsError,
    transport::budget::{BudgetClient, Charge},
};

/// The greatest length of mappings that are rounded up to a power of two, so that they fit many
/// messages.
const LARGEST_CLASS: usize = 16 << 20;
/// Longer mappings are made accessible in steps of this number of bytes, as messages arrive.
const USABLE_STEP: usize = 1 << 20;
/// The greatest number of free mappings that are kept, so that a search through them stays cheap.
const MAX_KEPT: usize = 16;

/// Allocates the memory into which one connection reads large messages, and keeps some free memory.
pub(crate) struct InboundPool {
    domain: Domain,
    client: Arc<BudgetClient>,
    /// The greatest number of bytes that are kept.
    limit: u64,
    spare: Mutex<Spare>,
}

#[derive(Default)]
struct Spare {
    /// The free mappings, longest first.
    free: Vec<Memory>,
    /// The number of bytes in free mappings, and in mappings in use that are kept afterwards.
    kept: u64,
    /// Whether free memory is returned to the system at once.
    closed: bool,
}

/// A mapping and its registered steps.
struct Memory {
    /// Dropped before the mapping and the charge.
    steps: Vec<Step>,
    mapping: Mapping,
    /// The number of bytes from the start of the mapping that are accessible.
    usable: usize,
    /// The charge to the budget for the memory, if its steps stay registered.
    kept: Option<Charge>,
}

impl Memory {
    /// Makes at least the first `end` bytes accessible, and up to a step more.
    fn make_usable(&mut self, end: usize) -> Result<(), OsError> {
        if end > self.usable {
            let end = end.next_multiple_of(USABLE_STEP).min(self.mapping.len());
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
    /// The charge to the budget for the region, if the region is deregistered after its read.
    /// Dropped after the region.
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

    /// Returns a buffer for a message of `len` bytes. It uses memory only for the parts that are
    /// [prepared](InboundBuffer::prepare).
    pub(crate) fn place(self: &Arc<Self>, len: usize) -> Result<Box<InboundBuffer>, OsError> {
        let memory = match self.take(len) {
            Some(memory) => memory,
            None => {
                let class = class(len);
                let (mapping, usable) = if class <= USABLE_STEP {
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
        // The buffer is boxed, because a channel reserves a place for each message that may arrive.
        Ok(Box::new(InboundBuffer {
            memory: Some(memory),
            len,
            charged: 0,
            pool: Arc::clone(self),
            held: None,
        }))
    }

    /// Charges a copy of `len` bytes to the budget, or returns `None` if it has no room for them
    /// now.
    pub(crate) fn place_copy(&self, len: u64) -> Option<Charge> {
        self.client.copy(len)
    }

    /// Requests a notification for when other connections have returned memory, because the system
    /// had none.
    pub(crate) fn await_memory(&self) {
        self.client.await_memory();
    }

    /// Whether other connections wait for memory that messages of the peer host use.
    pub(crate) fn is_contended(&self) -> bool {
        self.client.is_contended()
    }

    /// Cancels the wait for memory.
    pub(crate) fn leave(&self) {
        self.client.leave();
    }

    /// Takes the shortest free mapping that is long enough, unless more than half of it would be
    /// unused.
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

    /// Charges `bytes` that stay registered, or returns `None` if there is no room. Frees kept
    /// mappings, which were too short, to make room.
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

    /// Returns all free memory to the system. Returns whether there was any.
    fn give_up_free(&self) -> bool {
        let mut spare = lock(&self.spare);
        let free = std::mem::take(&mut spare.free);
        spare.kept -= free
            .iter()
            .map(|memory| memory.mapping.len() as u64)
            .sum::<u64>();
        drop(spare);
        !free.is_empty()
    }

    /// Returns free memory to the system, and later memory as soon as it is free.
    pub(crate) fn close(&self) {
        self.leave();
        lock(&self.spare).closed = true;
        self.give_up_free();
    }
}

impl fmt::Debug for InboundPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboundPool")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// Returns the length of a mapping for `len` bytes.
fn class(len: usize) -> usize {
    let len = len.max(SHORTEST_CHUNK as usize);
    let class = if len <= LARGEST_CLASS {
        len.checked_next_power_of_two()
    } else {
        len.checked_next_multiple_of(SHORTEST_CHUNK as usize)
    };
    // A length that cannot be rounded up cannot be mapped, and mmap(2) returns the error.
    class.unwrap_or(len)
}

/// The memory into which one large message is read, and from which the application reads it.
pub(crate) struct InboundBuffer {
    /// `None` only while it is dropped.
    memory: Option<Memory>,
    len: usize,
    /// The number of bytes charged to `held`, without the rest of their last page.
    charged: usize,
    pool: Arc<InboundPool>,
    /// After the memory.
    held: Option<Charge>,
}

impl InboundBuffer {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Prepares up to `len` bytes at `offset` for a read, and returns their number. Returns `None`
    /// if the budget has no room for them, and requests a notification for when it has. The caller
    /// prepares pieces in their order.
    pub(crate) fn prepare(&mut self, offset: usize, len: usize) -> Result<Option<usize>, OsError> {
        assert!(
            len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.len),
            "the state machine reads what was announced"
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
            // A step that begins before this chunk may be in use by the last chunk. A step that
            // begins here and is too short is registered again.
            if ready >= len || step.offset < offset {
                return Ok(Some(ready.min(len)));
            }
        }
        let capacity = memory.mapping.len() - offset;
        let (long, pinned) = match &memory.kept {
            // The step has the greatest length that a later message in this mapping may need.
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
        // No read into the memory from `offset` on is in progress.
        memory
            .steps
            .retain(|step| step.end() <= offset || step.offset >= offset + long);
        // SAFETY: `long` bytes from `offset` on lie inside of the mapping.
        let start = unsafe { memory.mapping.start().as_ptr().add(offset) };
        let domain = &self.pool.domain;
        // SAFETY: the mapping outlives the registration, whose only handle lies in the step: steps
        // are dropped before their mapping. There is no reference to the bytes while the device may
        // write them, and no other code knows them (top of this file).
        let register = || unsafe { domain.register_read_target(start, long) };
        let region = match register() {
            // Releases the free memory of this connection and tries again.
            Err(error) if error.errno == libc::ENOMEM && self.pool.give_up_free() => register(),
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

    /// Copies bytes to their place in the message. Returns false if the budget has no room for
    /// them, and requests a notification for when it has. The caller copies bytes in their order.
    pub(crate) fn fill(&mut self, offset: usize, bytes: &[u8]) -> Result<bool, OsError> {
        let end = offset + bytes.len();
        assert!(
            end <= self.len,
            "the state machine copies what was announced"
        );
        if !self.hold(end) {
            return Ok(false);
        }
        let Some(memory) = &mut self.memory else {
            return Ok(false);
        };
        memory.make_usable(end)?;
        let to = memory.mapping.start().as_ptr().wrapping_add(offset);
        // SAFETY: the first `end` bytes of the mapping are memory. There is no reference to them
        // while the message is incomplete, and the device writes none, because no read into this
        // message is posted.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(true)
    }

    /// Charges the first `end` bytes to the budget. Returns whether it has room for them.
    fn hold(&mut self, end: usize) -> bool {
        let pages = |len: usize| len.next_multiple_of(4096) as u64;
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

    /// Returns the first byte of a prepared chunk, and its key.
    pub(crate) fn chunk(&self, offset: usize, len: usize) -> Option<(*mut u8, u32)> {
        let steps = self.memory.as_ref().map(|memory| &memory.steps)?;
        let step = steps
            .iter()
            .find(|step| step.offset <= offset && offset + len <= step.end())?;
        let start = step.region.as_ptr().wrapping_add(offset - step.offset);
        Some((start, step.region.lkey()))
    }

    /// Handles that the read of the chunk at `offset` has completed.
    pub(crate) fn chunk_read(&mut self, offset: usize) {
        if let Some(memory) = &mut self.memory
            && memory.kept.is_none()
        {
            memory.steps.retain(|step| step.offset != offset);
        }
    }

    /// Returns the whole message, once it has been read.
    pub(crate) fn bytes(&self) -> &[u8] {
        let Some(memory) = &self.memory else {
            return &[];
        };
        assert!(self.len <= memory.usable, "all chunks were prepared");
        // SAFETY: the first `usable` bytes of the mapping are memory, zeroed when it was made, and
        // outlive `self`; the device does not write them while there is a reference (top of this
        // file).
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
            assert!(class >= len, "{len}");
            assert!(class <= (64 << 10).max(2 * len), "{len}");
        }
    }
}
