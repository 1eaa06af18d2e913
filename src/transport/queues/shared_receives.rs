//! Receive buffers on a shared receive queue. Connections of one engine can share them if all of
//! these connections use the same device, or all use TCP, or all use the in-memory transport.
//!
//! One memory region contains all buffers of a queue. Posting a buffer is sound for two reasons.
//! First, the region outlives the queue (field order). Second, no other code uses the buffer while
//! it belongs to the device: from [`SharedReceives::post`] until the completion of the receive is
//! polled. Then the buffer belongs to the connection that polled the completion (the buffer's
//! [holder](SharedReceives::take)) until the buffer is reposted.
//!
//! A message can outlive its connection. The buffer of a message that the application still holds
//! returns to the pool when the application releases the message. All other buffers that a
//! connection holds are reposted when its queue pair has been destroyed.
//!
//! While a connection is being drained, or after its peer has violated the protocol, each receive
//! buffer of the connection is reposted as soon as its completion is polled.
//!
//! Before a queue pair is destroyed, its completion queue is polled until it is empty. A driver may
//! discard the completions of a destroyed queue pair, and only these completions show which buffers
//! the queue pair consumed. A driver may fail to report a receive that was in progress when the
//! queue pair was destroyed. The pool then has one buffer fewer until its last connection ends.
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

/// The holder value of a buffer that is posted on the device.
const POSTED: u64 = 0;
/// The holder value of a buffer whose message the application has received and not released yet.
/// All values other than this one and [`POSTED`] are keys of connections.
const MESSAGE: u64 = u64::MAX;

/// A pool of shared receive buffers: see the top of this file.
pub(crate) struct SharedReceives {
    /// The queue. Dropped before `memory`, because the device may access the buffers until the
    /// queue is destroyed.
    queue: SharedReceiveQueue,
    pub(crate) memory: Registration,
    domain: Domain,
    /// The length of a buffer in bytes.
    size: usize,
    /// The holder of each buffer.
    holders: Box<[AtomicU64]>,
    /// The account of reserved and free receives.
    pub(crate) account: Arc<Account>,
}

impl SharedReceives {
    /// Creates `count` buffers of `size` bytes, and posts them on `queue`. The queue belongs to
    /// `domain` and has the depth `count`.
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

    /// Returns whether the pool has `count` buffers of this size.
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
        // SAFETY: the queue has a slot for each buffer. The buffer lies in `memory`, which outlives
        // the queue, and no other code uses it (see the top of this file).
        unsafe { self.queue.post_recv(id, sge) }
    }

    /// Posts several buffers, with as few calls as possible.
    fn post_all(&self, buffers: impl Iterator<Item = u32>) -> Result<(), OsError> {
        let receives = buffers.map(|buffer| self.request(buffer));
        // SAFETY: as in `post`.
        unsafe { self.queue.post_recvs(receives) }
    }

    /// Marks a buffer as posted. Returns its work request, which the caller then posts.
    #[inline]
    fn request(&self, buffer: u32) -> (WorkId, Sge) {
        self.holders[buffer as usize].store(POSTED, Ordering::Relaxed);
        // The cast is lossless, because the length of a buffer is at most 1 MiB plus a header
        // (`Config::check`).
        let sge = Sge {
            start: self.memory.as_ptr().wrapping_add(self.offset(buffer)),
            len: self.size as u32,
            lkey: self.memory.lkey(),
        };
        (WorkId::Recv(buffer), sge)
    }

    /// Records that the connection with this key has polled the completion of a buffer, and is now
    /// the buffer's holder.
    pub(crate) fn take(&self, buffer: u32, key: u64) {
        self.holders[buffer as usize].store(key, Ordering::Relaxed);
    }

    /// Records that the holder of a buffer has delivered the message in the buffer to the
    /// application.
    pub(crate) fn lend(&self, buffer: u32) {
        self.holders[buffer as usize].store(MESSAGE, Ordering::Relaxed);
    }

    /// Posts the buffers that the connection with this key still holds.
    pub(crate) fn post_all_of(&self, key: u64) -> Result<(), OsError> {
        // Only the holder of a buffer changes the buffer's entry in `holders`. The caller is the
        // holder of all buffers with this key, so no other thread changes their entries.
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

/// The pools of shared receives that one engine uses on one device, over TCP, or over the in-memory
/// transport. Connections that need the same number and size of buffers use the same pool.
#[derive(Debug, Default)]
pub(crate) struct SharedPools(Mutex<Vec<Weak<SharedReceives>>>);

impl SharedPools {
    /// Returns the pool with this number and size of buffers. Creates the pool if it does not
    /// exist.
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
