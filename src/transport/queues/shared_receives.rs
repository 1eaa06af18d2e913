//! Receive buffers that the connections of an engine on one device share, posted on a shared
//! receive queue.
//!
//! The queue's own memory region holds them. Handing it to the device is sound because the region
//! outlives the queue (field order), and because a buffer belongs to the device from
//! [`SharedReceives::post`] until its completion is polled, and then to the connection that polled
//! it, which is its [holder](SharedReceives::take) until it posts it again.
//!
//! A message may outlive its connection, so its buffer returns to the pool. After the end of a
//! queue pair all buffers of its holder are posted again, except those of messages that the
//! application has. Frames of a connection that is being drained, or that has violated the
//! protocol, return as soon as they are polled. Before a queue pair is destroyed its completion
//! queue is read to the end, because a driver may discard completions of a destroyed queue pair,
//! and with them the information which buffers it held. If a driver does not report a receive that
//! was in progress then, the pool has one buffer less until its last connection ends.
#![allow(unsafe_code)]

use std::{
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    queue_pair::SharedReceiveQueue,
    work_request::{Sge, WorkId},
};
use crate::{
    os::lock,
    proto::Account,
    status::OsError,
    transport::memory::{Domain, Registration},
};

/// The holder value of a buffer that belongs to the device.
const POSTED: u64 = 0;
/// The holder value of a buffer with a message that the application has not released. The other
/// values are keys of connections.
const MESSAGE: u64 = u64::MAX;

/// A pool of shared receive buffers, as described at the top of this file.
pub(crate) struct SharedReceives {
    /// Before `memory`: once it is destroyed the device touches none of the buffers.
    queue: SharedReceiveQueue,
    pub(crate) memory: Registration,
    domain: Domain,
    /// The length of a buffer in bytes.
    size: usize,
    /// The holder of each buffer.
    holders: Box<[AtomicU64]>,
    /// The counts of promised and free receives.
    pub(crate) account: Arc<Account>,
}

impl SharedReceives {
    /// Creates `count` buffers of `size` bytes, and posts them on a queue of this domain with
    /// `count` places.
    pub(crate) fn new(
        domain: Domain,
        queue: SharedReceiveQueue,
        count: u32,
        size: usize,
    ) -> Result<Self, OsError> {
        let memory = domain.allocate_buffers(size * count as usize)?;
        let shared = Self {
            queue,
            memory,
            domain,
            size,
            holders: (0..count).map(|_| AtomicU64::new(POSTED)).collect(),
            account: Arc::new(Account::new(count)),
        };
        shared.post_all(0..count)?;
        Ok(shared)
    }

    pub(crate) fn queue(&self) -> &SharedReceiveQueue {
        &self.queue
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Whether the pool matches a configuration of `count` buffers of this size.
    pub(crate) fn is(&self, count: u32, size: usize) -> bool {
        self.holders.len() == count as usize && self.size == size
    }

    /// Returns the offset of a buffer in the region.
    pub(crate) fn offset(&self, buffer: u32) -> usize {
        self.size * buffer as usize
    }

    /// Returns the number of buffers.
    pub(crate) fn count(&self) -> u32 {
        self.account.total()
    }

    /// Posts a buffer.
    pub(crate) fn post(&self, buffer: u32) -> Result<(), OsError> {
        let (id, sge) = self.request(buffer);
        // SAFETY: the queue has a place for each buffer. This one lies in `memory`, which outlives
        // the queue, and has no other user (top of this file).
        unsafe { self.queue.post_recv(id, sge) }
    }

    /// Posts buffers in lists, with one call for each.
    fn post_all(&self, buffers: impl Iterator<Item = u32>) -> Result<(), OsError> {
        let receives = buffers.map(|buffer| self.request(buffer));
        // SAFETY: as in `post`.
        unsafe { self.queue.post_recvs(receives) }
    }

    /// Returns the work request of a buffer, which the caller hands to the device.
    #[inline]
    fn request(&self, buffer: u32) -> (WorkId, Sge) {
        self.holders[buffer as usize].store(POSTED, Ordering::Relaxed);
        // A buffer is at most 1 MiB and a header: `Config::check`.
        let sge = Sge {
            start: self.memory.as_ptr().wrapping_add(self.offset(buffer)),
            len: self.size as u32,
            lkey: self.memory.lkey(),
        };
        (WorkId::Recv(buffer), sge)
    }

    /// Records that the connection with this key has polled the completion of a buffer, and now
    /// holds it.
    pub(crate) fn take(&self, buffer: u32, key: u64) {
        self.holders[buffer as usize].store(key, Ordering::Relaxed);
    }

    /// Records that a buffer's holder has handed it to the application in a message.
    pub(crate) fn lend(&self, buffer: u32) {
        self.holders[buffer as usize].store(MESSAGE, Ordering::Relaxed);
    }

    /// Posts the buffers that the connection with this key still holds.
    pub(crate) fn post_all_of(&self, key: u64) -> Result<(), OsError> {
        // Only its holder changes it, and the caller is the holder of all buffers with this key.
        let is_held = |holder: &AtomicU64| holder.load(Ordering::Relaxed) == key;
        let held = (0..).zip(&self.holders);
        let held = held.filter(|(_, holder)| is_held(holder));
        self.post_all(held.map(|(buffer, _)| buffer))
    }
}

impl fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceives")
            .field("size", &self.size)
            .field("account", &self.account)
            .finish_non_exhaustive()
    }
}

/// The pools of shared receives on one device, one for each kind in use.
#[derive(Debug, Default)]
pub(crate) struct SharedPools(Mutex<Vec<Weak<SharedReceives>>>);

impl SharedPools {
    /// Returns the pool of this kind, and creates it if there is none.
    pub(crate) fn get(
        &self,
        count: u32,
        size: usize,
        make: impl FnOnce() -> Result<SharedReceives, OsError>,
    ) -> Result<Arc<SharedReceives>, OsError> {
        let mut all = lock(&self.0);
        let of_this_kind = all
            .iter()
            .filter_map(Weak::upgrade)
            .find(|shared| shared.is(count, size));
        if let Some(shared) = of_this_kind {
            return Ok(shared);
        }
        let shared = Arc::new(make()?);
        all.retain(|shared| shared.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Ok(shared)
    }
}
