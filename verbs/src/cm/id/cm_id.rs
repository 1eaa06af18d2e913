#![allow(unsafe_code)]

use std::{
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use rdma_status::OsError;

use super::mode::Mode;
use crate::{
    cm::{CmEvent, EventChannel, PortSpace, owned_id::OwnedId},
    sys::{cvt, cvt_ptr, ffi},
};

/// A communication id: librdmacm's counterpart of a socket.
///
/// Steps on an id of an [`EventChannel`] return immediately, and their result is an event. Steps on
/// an id of [`new_sync`](Self::new_sync) return when they have completed, and the event is in
/// [`last_event`](Self::last_event).
///
/// Dropping it disconnects and destroys it once its queue pair has been destroyed as well: the
/// [`QueuePair`](crate::verbs::QueuePair) holds it. See
/// [`rdma_create_id(3)`](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html).
#[doc(alias = "rdma_cm_id")]
pub struct CmId {
    /// Shared with the queue pair.
    pub(super) inner: Arc<OwnedId>,
    pub(super) mode: Mode,
}

impl CmId {
    /// Creates an id whose events are reported on `channel`.
    ///
    /// They carry `context`, a number that the program chooses.
    ///
    /// # Errors
    ///
    /// Those of `rdma_create_id`.
    #[doc(alias = "rdma_create_id")]
    pub fn new(channel: &EventChannel, ps: PortSpace, context: u64) -> Result<Self, OsError> {
        const CALL: &str = "rdma_create_id";
        let mut raw = ptr::null_mut();
        // SAFETY: the channel exists, the out pointer is a local, and the context is a number that
        // is never dereferenced.
        let ret = unsafe {
            ffi::rdma_create_id(channel.as_ptr(), &raw mut raw, context as *mut _, ps.raw())
        };
        cvt(CALL, ret)?;
        Ok(Self::from_raw(cvt_ptr(CALL, raw)?, channel, Mode::Async))
    }

    /// Takes ownership of an id of librdmacm's that nothing else destroys.
    pub(super) fn from_raw(
        raw: NonNull<ffi::rdma_cm_id>,
        channel: &EventChannel,
        mode: Mode,
    ) -> Self {
        Self {
            inner: Arc::new(OwnedId::new(raw, channel)),
            mode,
        }
    }

    /// Sets the number that the id's events carry from now on.
    ///
    /// The id of a CONNECT_REQUEST starts with 0.
    pub fn set_context(&mut self, context: u64) {
        self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).context = context as *mut _ }
        });
    }

    /// Returns the number set by [`new`](Self::new) or [`set_context`](Self::set_context).
    #[must_use]
    pub fn context(&self) -> u64 {
        self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).context as u64 }
        })
    }
}

impl CmEvent {
    /// Takes the new id of a CONNECT_REQUEST.
    ///
    /// An id that is not taken is destroyed with the event, which rejects the request.
    pub fn take_request(&mut self) -> Option<CmId> {
        let id = self.take_owned_request()?;
        Some(CmId {
            inner: Arc::new(id),
            mode: Mode::Async,
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
