//! An id: one connection, or one listener, or one datagram socket.
#![allow(unsafe_code)]

mod address;
mod connect;
mod migrate;
mod multicast;
mod options;
mod queue_pair;
mod sync;

use std::{
    fmt,
    net::SocketAddr,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use libc::c_int;

use self::sync::Mode;
pub use self::{address::PortSpace, options::Ece};
use super::EventChannel;
use crate::{
    status::OsError,
    sys::{cvt, cvt_ptr, ffi, log_destroy_error},
};

/// A communication id: librdmacm's counterpart of a socket.
///
/// Steps on an id of an [`EventChannel`] return at once, and what comes of them is an event. Steps on an id of
/// [`new_sync`](Self::new_sync) return when they are done, and the event is in [`last_event`](Self::last_event).
///
/// Dropping it disconnects and destroys it, once its queue pair is gone as well: the [`QueuePair`](crate::verbs::QueuePair) holds it.
/// See [`rdma_create_id(3)`](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html).
#[doc(alias = "rdma_cm_id")]
pub struct CmId {
    inner: Arc<Inner>,
    mode: Mode,
}

/// The id itself, shared with its queue pair.
struct Inner {
    raw: NonNull<ffi::rdma_cm_id>,
    /// Locked first, then the channel in it: whoever holds both has the id to itself.
    home: Mutex<Home>,
}

struct Home {
    /// Where the id's events come in.
    channel: EventChannel,
    local: Local,
}

/// What has to be known of an id beyond what librdmacm tells.
#[derive(Default)]
struct Local {
    /// Whether it listens, so that connect requests may wait on its channel.
    listens: bool,
    /// The multicast groups that it joined and has not left.
    groups: Vec<SocketAddr>,
}

// SAFETY: the pointer is used with `home` and the channel's lock held, see `Inner::with`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl CmId {
    /// Makes an id whose events come in on `channel`, marked with `context`, a number of the program's own.
    ///
    /// # Errors
    ///
    /// Of `rdma_create_id`.
    #[doc(alias = "rdma_create_id")]
    pub fn new(channel: &EventChannel, ps: PortSpace, context: u64) -> Result<Self, OsError> {
        const CALL: &str = "rdma_create_id";
        let mut raw = ptr::null_mut();
        // SAFETY: the channel exists, the out pointer is a local, and the context is a number that is never followed.
        let ret = unsafe {
            ffi::rdma_create_id(channel.as_ptr(), &raw mut raw, context as *mut _, ps.raw())
        };
        cvt(CALL, ret)?;
        Ok(Self::from_raw(cvt_ptr(CALL, raw)?, channel, Mode::Async))
    }

    /// Takes the id that a CONNECT_REQUEST brought.
    ///
    /// # Safety
    ///
    /// `raw` is a new id on `channel`, owned by nobody, and the channel's lock is held.
    pub(super) unsafe fn from_request(
        raw: NonNull<ffi::rdma_cm_id>,
        channel: &EventChannel,
    ) -> Self {
        // SAFETY: the caller vouches for the id and the lock. It has its listener's context, whose events are not its own.
        unsafe { (*raw.as_ptr()).context = ptr::null_mut() };
        Self::from_raw(raw, channel, Mode::Async)
    }

    /// Takes over an id of librdmacm's that nobody else will destroy.
    fn from_raw(raw: NonNull<ffi::rdma_cm_id>, channel: &EventChannel, mode: Mode) -> Self {
        let home = Home {
            channel: channel.clone(),
            local: Local::default(),
        };
        Self {
            inner: Arc::new(Inner {
                raw,
                home: Mutex::new(home),
            }),
            mode,
        }
    }

    /// Marks the id's events from now on with a number of the program's own. The id of a CONNECT_REQUEST begins with 0.
    pub fn set_context(&mut self, context: u64) {
        self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).context = context as *mut _ }
        });
    }

    /// The number that [`new`](Self::new) or [`set_context`](Self::set_context) set.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).context as u64 }
        })
    }
}

impl Inner {
    fn home(&self) -> MutexGuard<'_, Home> {
        // The lock guards no data that a panic could leave half-done.
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channel(&self) -> EventChannel {
        self.home().channel.clone()
    }

    /// Runs `f` while nobody else uses the id and nobody reads an event of it.
    fn with<T>(&self, f: impl FnOnce(*mut ffi::rdma_cm_id, &mut Local) -> T) -> T {
        let mut home = self.home();
        let Home { channel, local } = &mut *home;
        let _lock = channel.lock();
        f(self.raw.as_ptr(), local)
    }

    /// Makes a call of librdmacm's on the id.
    fn call(
        &self,
        name: &'static str,
        f: impl FnOnce(*mut ffi::rdma_cm_id) -> c_int,
    ) -> Result<(), OsError> {
        self.with(|id, _| cvt(name, f(id)).map(drop))
    }

    /// Makes a call that follows the id's pointer to its device. As long as it has none, as before ADDR_RESOLVED was read, the
    /// answer is `EINVAL`, where librdmacm would follow null.
    fn call_bound(
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
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId")
            .field("context", &self.context())
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let result = self.with(|id, local| {
            // SAFETY: the id exists and is locked.
            unsafe { local.leave_groups(id) };
            // SAFETY: this is the last handle, the queue pair, which holds one, is gone, and all events that were read are
            // acknowledged, so it waits for nobody.
            cvt("rdma_destroy_id", unsafe { ffi::rdma_destroy_id(id) })
        });
        log_destroy_error(result.map(drop));
    }
}
