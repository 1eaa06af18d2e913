#![allow(unsafe_code)]

use std::{
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use rdma_status::{OsError, open_enum};

use crate::{
    cm::{CmEvent, EventChannel, owned_id::OwnedId},
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

    /// Sets the number that later events of the id carry.
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

/// The mode of an id, which decides how its steps complete.
pub(super) enum Mode {
    /// Steps return immediately. Their events are reported on a channel of the program.
    Async,
    /// Steps return when their event has been read, on a channel that nothing else reads.
    Sync {
        /// The last event. Boxed because an event may hold an id.
        last_event: Option<Box<CmEvent>>,
        /// Whether there is a connection, whose end will be reported by an event.
        connected: bool,
    },
}

impl Mode {
    pub(super) const fn sync(last_event: Option<Box<CmEvent>>) -> Self {
        Self::Sync {
            last_event,
            connected: false,
        }
    }

    pub(super) const fn is_connected(&self) -> bool {
        match self {
            Self::Async => false,
            Self::Sync { connected, .. } => *connected,
        }
    }

    pub(super) const fn set_connected(&mut self, now: bool) {
        match self {
            Self::Async => {}
            Self::Sync { connected, .. } => *connected = now,
        }
    }
}

impl CmId {
    /// Moves the id to another channel, with the events that wait on the old one.
    ///
    /// An id of [`new_sync`](Self::new_sync) becomes one whose steps return immediately.
    ///
    /// # Errors
    ///
    /// `EBUSY` for a listener while there are unread events on its channel: connect requests are
    /// bound to the old channel by the kernel, and would be lost. A request that arrives during the
    /// call is lost; otherwise those of
    /// [`rdma_migrate_id(3)`](https://man7.org/linux/man-pages/man3/rdma_migrate_id.3.html).
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<(), OsError> {
        self.inner.migrate(channel)?;
        self.mode = Mode::Async;
        Ok(())
    }
}

open_enum! {
    /// The kind of service that a port number refers to: `enum rdma_port_space`.
    #[doc(alias = "rdma_port_space")]
    pub struct PortSpace(u32);
    /// Datagrams over IP over InfiniBand. Their queue pairs can communicate with those of IPoIB.
    IPOIB = 0x0002;
    /// Reliable connections, addressed by IP address and port.
    TCP = 0x0106;
    /// Datagrams, addressed by IP address and port.
    UDP = 0x0111;
    /// Any service, addressed as InfiniBand does.
    IB = 0x013f;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ffi;

    #[test]
    fn port_spaces_are_those_of_the_header() {
        assert_eq!(PortSpace::TCP.raw(), ffi::rdma_port_space::RDMA_PS_TCP);
        assert_eq!(PortSpace::UDP.raw(), ffi::rdma_port_space::RDMA_PS_UDP);
        assert_eq!(PortSpace::IB.raw(), ffi::rdma_port_space::RDMA_PS_IB);
        assert_eq!(PortSpace::IPOIB.raw(), ffi::rdma_port_space::RDMA_PS_IPOIB);
    }
}
