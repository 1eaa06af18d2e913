#![allow(unsafe_code)]

use std::{
    cmp::Ordering,
    fmt,
    net::SocketAddr,
    ptr::{self, NonNull},
    sync::{Mutex, MutexGuard},
};

use libc::c_int;
use rdma_status::OsError;

use super::EventChannel;
use crate::sys::{Process, cvt, ffi, lock, log_destroy_error, sockaddr};

/// An id of librdmacm's, destroyed when this is dropped.
///
/// A [`CmId`](super::CmId) shares it with its queue pair; an event holds the one of a
/// CONNECT_REQUEST until it is taken.
pub(super) struct OwnedId {
    raw: NonNull<ffi::rdma_cm_id>,
    /// The process that created it, and that alone destroys it.
    process: Process,
    /// Locked first, then the channel in it: a thread that holds both has exclusive use of the id.
    state: Mutex<IdState>,
}

struct IdState {
    /// The channel on which the id's events are reported.
    channel: EventChannel,
    local: Local,
}

/// The state of an id that librdmacm does not report.
#[derive(Default)]
pub(super) struct Local {
    /// Whether it listens, so that connect requests may be queued on its channel.
    pub(super) listens: bool,
    pub(super) groups: Groups,
}

// SAFETY: the pointer is used with `state` and the channel's lock held, see `with`.
unsafe impl Send for OwnedId {}
// SAFETY: as above.
unsafe impl Sync for OwnedId {}

impl OwnedId {
    /// Takes ownership of an id of librdmacm's that nothing else destroys.
    pub(super) fn new(raw: NonNull<ffi::rdma_cm_id>, channel: &EventChannel) -> Self {
        let state = IdState {
            channel: channel.clone(),
            local: Local::default(),
        };
        Self {
            raw,
            process: Process::this(),
            state: Mutex::new(state),
        }
    }

    /// Takes ownership of the id that a CONNECT_REQUEST carries.
    ///
    /// # Safety
    ///
    /// `raw` is a new id on `channel` that nothing owns, and the channel's lock is held.
    pub(super) unsafe fn from_request(
        raw: NonNull<ffi::rdma_cm_id>,
        channel: &EventChannel,
    ) -> Self {
        // SAFETY: the caller guarantees the conditions on the id and the lock. It has its
        // listener's context, whose events are not its own.
        unsafe { (*raw.as_ptr()).context = ptr::null_mut() };
        Self::new(raw, channel)
    }

    fn state(&self) -> MutexGuard<'_, IdState> {
        // The lock guards no data that a panic could leave inconsistent.
        lock(&self.state)
    }

    pub(super) fn channel(&self) -> EventChannel {
        self.state().channel.clone()
    }

    /// Runs `f` with exclusive use of the id, while no event of it is read.
    pub(super) fn with<T>(&self, f: impl FnOnce(*mut ffi::rdma_cm_id, &mut Local) -> T) -> T {
        let mut state = self.state();
        let IdState { channel, local } = &mut *state;
        let _lock = channel.lock();
        f(self.raw.as_ptr(), local)
    }

    /// Makes a call of librdmacm's on the id.
    pub(super) fn call(
        &self,
        name: &'static str,
        f: impl FnOnce(*mut ffi::rdma_cm_id) -> c_int,
    ) -> Result<(), OsError> {
        self.with(|id, _| cvt(name, f(id)).map(drop))
    }

    /// Makes a call that dereferences the id's pointer to its device.
    ///
    /// While that is null, as before ADDR_RESOLVED was read, the result is `EINVAL`: librdmacm
    /// would dereference null.
    pub(super) fn call_bound(
        &self,
        name: &'static str,
        f: impl FnOnce(*mut ffi::rdma_cm_id) -> c_int,
    ) -> Result<(), OsError> {
        self.with(|id, _| {
            // SAFETY: the id exists and is locked.
            if unsafe { (*id).verbs }.is_null() {
                return Err(OsError::new(name, libc::EINVAL));
            }
            cvt(name, f(id)).map(drop)
        })
    }

    /// Moves the id to another channel: [`CmId::migrate`](super::CmId::migrate).
    pub(super) fn migrate(&self, channel: &EventChannel) -> Result<(), OsError> {
        const CALL: &str = "rdma_migrate_id";
        let mut state = self.state();
        // Outlives the locks.
        let old = state.channel.clone();
        // This id's events must not be read while it moves, neither from the old channel nor from
        // the new one. Two calls that migrate in opposite directions must not deadlock, so the
        // channels are locked in the order of their addresses.
        let _locks = match old.as_ptr().cmp(&channel.as_ptr()) {
            Ordering::Equal => return Ok(()),
            Ordering::Less => {
                let first = old.lock();
                (first, channel.lock())
            }
            Ordering::Greater => {
                let first = channel.lock();
                (first, old.lock())
            }
        };
        if state.local.listens && old.is_readable() {
            return Err(OsError::new(CALL, libc::EBUSY));
        }
        // SAFETY: id and channel exist and are locked. The call waits for unacknowledged events,
        // and there are none outside these locks.
        let ret = unsafe { ffi::rdma_migrate_id(self.raw.as_ptr(), channel.as_ptr()) };
        cvt(CALL, ret)?;
        state.channel = channel.clone();
        Ok(())
    }
}

impl fmt::Debug for OwnedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedId")
            .field("raw", &self.raw)
            .finish_non_exhaustive()
    }
}

impl Drop for OwnedId {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The object is the parent's, which has its descriptor, too.
            return;
        }
        let result = self.with(|id, local| {
            // SAFETY: the id exists and is locked, and its events are acknowledged as they are
            // read.
            unsafe { local.groups.leave_all(id) };
            // SAFETY: this is the last handle: the queue pair, which holds one, has been destroyed.
            // All events that were read are acknowledged, so the call does not block.
            cvt("rdma_destroy_id", unsafe { ffi::rdma_destroy_id(id) })
        });
        log_destroy_error(result.map(drop));
    }
}

/// The multicast groups that an id has joined and not left.
#[derive(Default)]
pub(super) struct Groups(Vec<SocketAddr>);

impl Groups {
    /// Records that the id has joined `group`.
    pub(super) fn joined(&mut self, group: SocketAddr) {
        self.0.push(group);
    }

    /// Leaves one group.
    ///
    /// # Safety
    ///
    /// `id` is the id whose groups these are. It exists, and is used by nothing else during the
    /// call. All events that were read of it are acknowledged, so the call does not block.
    pub(super) unsafe fn leave(
        &mut self,
        id: *mut ffi::rdma_cm_id,
        group: SocketAddr,
    ) -> Result<(), OsError> {
        if let Some(place) = self.0.iter().position(|joined| *joined == group) {
            self.0.swap_remove(place);
        }
        // SAFETY: as the caller's.
        cvt("rdma_leave_multicast", unsafe { leave(id, group) }).map(drop)
    }

    /// Leaves all groups, as must be done before the queue pair and the id are destroyed.
    ///
    /// The kernel refuses to destroy a queue pair that is in one, which librdmacm does not report;
    /// and the memory that librdmacm allocated for a group is not freed with the id.
    ///
    /// # Safety
    ///
    /// As [`leave`](Self::leave).
    pub(super) unsafe fn leave_all(&mut self, id: *mut ffi::rdma_cm_id) {
        for group in self.0.drain(..) {
            // SAFETY: as the caller's.
            if let Err(error) = cvt("rdma_leave_multicast", unsafe { leave(id, group) }) {
                warn!(Rdma, "cannot leave the multicast group {group}: {error}");
            }
        }
    }
}

/// # Safety
///
/// As [`Groups::leave`].
unsafe fn leave(id: *mut ffi::rdma_cm_id, group: SocketAddr) -> c_int {
    let mut addr = sockaddr::from_std(group);
    // SAFETY: the caller guarantees the conditions on the id; the address is a local as large as
    // any.
    unsafe { ffi::rdma_leave_multicast(id, (&raw mut addr).cast()) }
}
