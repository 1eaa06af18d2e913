#![allow(unsafe_code)]

use std::{
    cmp::Ordering,
    fmt,
    net::SocketAddr,
    ptr::{self, NonNull},
    sync::Mutex,
};

use libc::c_int;
use rdma_status::OsError;

use super::EventChannel;
use crate::sys::{Guard, Process, cvt, ffi, lock, log_destroy_error, sockaddr};

/// A librdmacm id, which is destroyed when this value is dropped.
///
/// A [`CmId`](super::CmId) shares the id with its queue pair. A CONNECT_REQUEST event owns its new
/// id until the program takes the id.
pub(super) struct OwnedId {
    raw: NonNull<ffi::rdma_cm_id>,
    /// The process that created the id. Only this process destroys it.
    process: Process,
    /// The channel and the local state of the id. A thread locks this mutex first, and then the
    /// channel. While a thread holds both locks, no other thread uses the id.
    state: Mutex<IdState>,
}

struct IdState {
    /// The channel on which the id's events are reported.
    channel: EventChannel,
    local: LocalState,
}

/// The part of an id's state that librdmacm does not expose.
#[derive(Default)]
pub(super) struct LocalState {
    /// True after a call of `rdma_listen`. From then on, the id's channel may contain connect
    /// requests.
    pub(super) listens: bool,
    pub(super) groups: Groups,
}

// SAFETY: the pointer is used only while the locks of `state` and of the channel are held (see
// `with`), and in `drop`, when no other handle of the id exists.
unsafe impl Send for OwnedId {}
// SAFETY: as above.
unsafe impl Sync for OwnedId {}

impl OwnedId {
    /// Takes ownership of an id that librdmacm created. No other code may destroy the id.
    pub(super) fn new(raw: NonNull<ffi::rdma_cm_id>, channel: &EventChannel) -> Self {
        let state = IdState {
            channel: channel.clone(),
            local: LocalState::default(),
        };
        Self {
            raw,
            process: Process::this(),
            state: Mutex::new(state),
        }
    }

    /// Takes ownership of the id in a CONNECT_REQUEST event.
    ///
    /// # Safety
    ///
    /// `raw` is a new id on `channel`. It has no owner yet, and the calling thread holds the
    /// channel's lock.
    pub(super) unsafe fn from_request(
        raw: NonNull<ffi::rdma_cm_id>,
        channel: &EventChannel,
    ) -> Self {
        // librdmacm has copied the listener's context into the new id. Clear the copy, because that
        // context identifies only the listener's events.
        // SAFETY: the caller guarantees that `raw` exists and that the channel's lock is held.
        unsafe { (*raw.as_ptr()).context = ptr::null_mut() };
        Self::new(raw, channel)
    }

    fn state(&self) -> Guard<'_, IdState> {
        // The state remains consistent after a panic, because no call leaves it partly changed.
        lock(&self.state)
    }

    pub(super) fn channel(&self) -> EventChannel {
        self.state().channel.clone()
    }

    /// Runs `f` while no other thread uses the id or reads one of its events.
    pub(super) fn with<T>(&self, f: impl FnOnce(*mut ffi::rdma_cm_id, &mut LocalState) -> T) -> T {
        let mut state = self.state();
        let IdState { channel, local } = &mut *state;
        let _lock = channel.lock();
        f(self.raw.as_ptr(), local)
    }

    /// Calls the librdmacm function `name` on the id while no other thread uses the id.
    pub(super) fn call(
        &self,
        name: &'static str,
        f: impl FnOnce(*mut ffi::rdma_cm_id) -> c_int,
    ) -> Result<(), OsError> {
        self.with(|id, _| cvt(name, || f(id)).map(drop))
    }

    /// Calls a librdmacm function that dereferences the id's pointer to its device.
    ///
    /// Returns `EINVAL` if that pointer is null, which means that the id is not bound to a device
    /// yet.
    pub(super) fn call_bound(
        &self,
        name: &'static str,
        f: impl FnOnce(*mut ffi::rdma_cm_id) -> c_int,
    ) -> Result<(), OsError> {
        self.with(|id, _| {
            // SAFETY: `with` passes an `id` that exists, and holds the lock of its channel.
            if unsafe { (*id).verbs }.is_null() {
                return Err(OsError::new(name, libc::EINVAL));
            }
            cvt(name, || f(id)).map(drop)
        })
    }

    /// Moves the id to another channel: [`CmId::migrate`](super::CmId::migrate).
    pub(super) fn migrate(&self, channel: &EventChannel) -> Result<(), OsError> {
        const CALL: &str = "rdma_migrate_id";
        let mut state = self.state();
        // This clone keeps the old channel alive until the lock in it is released.
        let old = state.channel.clone();
        // While the id moves, no thread may read its events from the old or the new channel.
        // Therefore this call locks both channels. It locks them in the order of their addresses,
        // so that two calls that migrate ids in opposite directions do not deadlock.
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
        // SAFETY: the id and `channel` exist, and the locks of both channels are held. The call
        // would wait for unacknowledged events, but there are none, because each event is
        // acknowledged while its channel is locked.
        cvt(CALL, || unsafe {
            ffi::rdma_migrate_id(self.raw.as_ptr(), channel.as_ptr())
        })?;
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
            // This process is a forked child, and the id belongs to the parent.
            return;
        }
        // SAFETY: `id` exists, the lock of its channel is held, and all events that were read have
        // been acknowledged.
        self.with(|id, local| unsafe { local.groups.leave_all(id) });
        // The lock of the channel is not held during the next call, because the kernel may wait for
        // the network, and other threads need the lock to use other ids. If another thread reads an
        // event of this id now, librdmacm frees the id only after that thread has acknowledged the
        // event.
        // SAFETY: this is the last handle of the id. A queue pair owns a handle to its id, so the
        // id's queue pair has already been destroyed.
        log_destroy_error(
            cvt("rdma_destroy_id", || unsafe {
                ffi::rdma_destroy_id(self.raw.as_ptr())
            })
            .map(drop),
        );
    }
}

/// The multicast groups that an id has requested to join and has not left.
#[derive(Default)]
pub(super) struct Groups(Vec<SocketAddr>);

impl Groups {
    /// Records that the id has requested to join `group`.
    pub(super) fn record_join(&mut self, group: SocketAddr) {
        self.0.push(group);
    }

    /// Leaves one group.
    ///
    /// # Safety
    ///
    /// `id` is the id that joined these groups. It exists, and no other thread uses it during the
    /// call. All of its events that were read have been acknowledged, so the call does not block.
    pub(super) unsafe fn leave(
        &mut self,
        id: *mut ffi::rdma_cm_id,
        group: SocketAddr,
    ) -> Result<(), OsError> {
        if let Some(index) = self.0.iter().position(|joined| *joined == group) {
            self.0.swap_remove(index);
        }
        // SAFETY: the requirements of `leave` and of this function are the same, and the caller
        // fulfils them.
        cvt("rdma_leave_multicast", || unsafe { leave(id, group) }).map(drop)
    }

    /// Leaves all groups. The caller does this before it destroys the queue pair or the id.
    ///
    /// The kernel does not destroy a queue pair that is a member of a group, and librdmacm does not
    /// report that failure. When librdmacm frees an id, it does not free the memory that it has
    /// allocated for the id's groups.
    ///
    /// # Safety
    ///
    /// The same as for [`leave`](Self::leave).
    pub(super) unsafe fn leave_all(&mut self, id: *mut ffi::rdma_cm_id) {
        for group in self.0.drain(..) {
            // SAFETY: the requirements of `leave` and of this function are the same, and the caller
            // fulfils them.
            if let Err(error) = cvt("rdma_leave_multicast", || unsafe { leave(id, group) }) {
                warn!(
                    Rdma,
                    "a connection manager id cannot leave the multicast group {group}, so the \
                     id's queue pair and the group's memory may leak: {error}"
                );
            }
        }
    }
}

/// Calls `rdma_leave_multicast`.
///
/// # Safety
///
/// The same as for [`Groups::leave`].
unsafe fn leave(id: *mut ffi::rdma_cm_id, group: SocketAddr) -> c_int {
    let mut addr = sockaddr::from_std(group);
    // SAFETY: the caller guarantees that `id` exists and that no other thread uses it. `addr` is a
    // local variable that is large enough for any address.
    unsafe { ffi::rdma_leave_multicast(id, (&raw mut addr).cast()) }
}
