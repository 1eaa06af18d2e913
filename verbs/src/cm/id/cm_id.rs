#![allow(unsafe_code)]

use std::{
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use rdma_status::{OsError, open_enum};

use crate::{
    cm::{CmEvent, EventChannel, owned_id::OwnedId},
    sys::{cvt, ffi},
};

/// A communication id, which is librdmacm's counterpart of a socket.
///
/// If the id was created on an [`EventChannel`], its operations (for example `connect`) return
/// immediately, and an event reports the result. Such an id is asynchronous.
/// [`new_sync`](Self::new_sync) and [`create_ep`](Self::create_ep) create synchronous ids. The
/// operations of a synchronous id block until they are complete, and
/// [`last_event`](Self::last_event) returns the event of the most recent operation.
///
/// Dropping a `CmId` disconnects and destroys the id. But if the id's
/// [`QueuePair`](crate::verbs::QueuePair) still exists, it keeps the id alive, and the id is
/// disconnected and destroyed when the queue pair is dropped. See
/// [`rdma_create_id(3)`](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html).
#[doc(alias = "rdma_cm_id")]
pub struct CmId {
    /// The id, shared with its queue pair.
    pub(super) inner: Arc<OwnedId>,
    pub(super) mode: Mode,
}

impl CmId {
    /// Creates an id whose events are reported on `channel`.
    ///
    /// Each event of the id carries `context`, a number that the program chooses.
    ///
    /// # Errors
    ///
    /// Returns the errors of `rdma_create_id`.
    #[doc(alias = "rdma_create_id")]
    pub fn new(channel: &EventChannel, ps: PortSpace, context: u64) -> Result<Self, OsError> {
        const CALL: &str = "rdma_create_id";
        let mut raw = ptr::null_mut();
        // SAFETY: the channel exists, and `raw` is a local variable. librdmacm does not dereference
        // the context, which is a number.
        cvt(CALL, || unsafe {
            ffi::rdma_create_id(channel.as_ptr(), &raw mut raw, context as *mut _, ps.raw())
        })?;
        let raw = NonNull::new(raw).ok_or(OsError::new(CALL, libc::EIO))?;
        Ok(Self::from_raw(raw, channel, Mode::Async))
    }

    /// Takes ownership of an id that librdmacm created. No other code may destroy the id.
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

    /// Sets the context of the id: a number that the later events of the id carry.
    ///
    /// For an id from a CONNECT_REQUEST, this number is initially 0.
    pub fn set_context(&mut self, context: u64) {
        self.inner.with(|id, _| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            unsafe { (*id).context = context as *mut _ }
        });
    }

    /// Returns the number that [`new`](Self::new) or [`set_context`](Self::set_context) has set.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.inner.with(|id, _| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            unsafe { (*id).context as u64 }
        })
    }
}

impl CmEvent {
    /// Takes the new id out of a CONNECT_REQUEST. Returns `None` for other events, and if the id
    /// was already taken.
    ///
    /// If the id is not taken, dropping the event destroys the id and so rejects the request.
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

/// The mode in which the operations of an id complete.
pub(super) enum Mode {
    /// An operation returns immediately. The program reads the result from the id's channel.
    Async,
    /// An operation blocks until it has read its event. No other code reads the id's channel.
    Sync {
        /// The event of the most recent operation. The event is boxed because it is several hundred
        /// bytes long.
        last_event: Option<Box<CmEvent>>,
        /// True while the id is connected. In this state, `disconnect` waits for the event
        /// DISCONNECTED.
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
    /// Moves the id to another channel, together with its unread events on the old channel.
    ///
    /// A synchronous id becomes asynchronous: after this call, its operations return immediately.
    ///
    /// # Errors
    ///
    /// Returns `EBUSY` if the id listens and its channel has unread events: the kernel would not
    /// move connect requests to the new channel, so they would be lost. Otherwise returns the
    /// errors of [`rdma_migrate_id(3)`][man]. A connect request that arrives during the call is
    /// lost without an error.
    ///
    /// [man]: https://man7.org/linux/man-pages/man3/rdma_migrate_id.3.html
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<(), OsError> {
        self.inner.migrate(channel)?;
        self.mode = Mode::Async;
        Ok(())
    }
}

open_enum! {
    /// The type of service to which a port number refers: `enum rdma_port_space`.
    #[doc(alias = "rdma_port_space")]
    pub struct PortSpace(u32);
    /// Datagrams in the format of IP over InfiniBand (IPoIB). Queue pairs of this port space can
    /// communicate with the queue pairs of IPoIB network interfaces.
    IPOIB = 0x0002;
    /// Reliable connections, addressed by IP address and port.
    TCP = 0x0106;
    /// Datagrams, addressed by IP address and port.
    UDP = 0x0111;
    /// Any service, addressed as on InfiniBand.
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
