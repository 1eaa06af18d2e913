//! An id: one connection, or one listener, or one datagram socket.
#![allow(unsafe_code)]

mod connect;
mod options;
mod queue_pair;
mod sync;

use std::{
    fmt,
    net::SocketAddr,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use libc::c_int;

use super::{CmEvent, Devices, EventChannel};
use crate::{
    status::{OsError, open_enum},
    sys::{cvt, cvt_ptr, ffi, log_destroy_error, sockaddr},
    verbs::Context,
};

pub use self::options::Ece;

open_enum! {
    /// Which kind of service a port number means: `enum rdma_port_space`.
    #[doc(alias = "rdma_port_space")]
    pub struct PortSpace(u32);
    /// IP over InfiniBand.
    IPOIB = 0x0002;
    /// Reliable connections, addressed by IP address and port.
    TCP = 0x0106;
    /// Datagrams, addressed by IP address and port.
    UDP = 0x0111;
    /// Any service, addressed as InfiniBand does.
    IB = 0x013f;
}

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
    /// Boxed because an event may hold an id.
    last_event: Option<Box<CmEvent>>,
}

/// The id itself, shared with its queue pair.
struct Inner {
    raw: NonNull<ffi::rdma_cm_id>,
    /// Where its events come in. Locked first, then the channel: whoever holds both has the id to itself.
    home: Mutex<Home>,
}

/// Whose events come in where.
#[derive(Clone)]
enum Home {
    /// On a channel of the program's.
    Channel(EventChannel),
    /// On one that librdmacm made for this id alone, and reads within the calls.
    Own,
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
        let _lock = channel.lock();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel exists, the out pointer is a local, and the context is a number that is never followed.
        let ret = unsafe {
            ffi::rdma_create_id(channel.as_ptr(), &raw mut raw, context as *mut _, ps.raw())
        };
        cvt("rdma_create_id", ret)?;
        Ok(Self::from_raw(
            cvt_ptr("rdma_create_id", raw)?,
            Home::Channel(channel.clone()),
        ))
    }

    /// Makes an id without a channel: its steps return when they are done.
    ///
    /// # Errors
    ///
    /// Of `rdma_create_id`.
    pub fn new_sync(ps: PortSpace) -> Result<Self, OsError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is a local; without a channel librdmacm makes one.
        let ret = unsafe {
            ffi::rdma_create_id(ptr::null_mut(), &raw mut raw, ptr::null_mut(), ps.raw())
        };
        cvt("rdma_create_id", ret)?;
        Ok(Self::from_raw(cvt_ptr("rdma_create_id", raw)?, Home::Own))
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
        Self::from_raw(raw, Home::Channel(channel.clone()))
    }

    fn from_raw(raw: NonNull<ffi::rdma_cm_id>, home: Home) -> Self {
        Self {
            inner: Arc::new(Inner {
                raw,
                home: Mutex::new(home),
            }),
            last_event: None,
        }
    }

    /// Marks the id's events from now on with a number of the program's own. The id of a CONNECT_REQUEST begins with 0.
    pub fn set_context(&mut self, context: u64) {
        self.inner.with(|id| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).context = context as *mut _ }
        });
    }

    /// The number that [`set_context`](Self::set_context) set.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.inner.with(|id| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).context as u64 }
        })
    }

    /// What came of the last step of an id made by [`new_sync`](Self::new_sync), its private data for instance.
    #[must_use]
    pub fn last_event(&self) -> Option<&CmEvent> {
        self.last_event.as_deref()
    }

    /// Binds to a local address. Port 0 takes a free one. An address that says which interface binds to its device, too.
    ///
    /// # Errors
    ///
    /// Of [`rdma_bind_addr(3)`](https://man7.org/linux/man-pages/man3/rdma_bind_addr.3.html): `EADDRINUSE`, `EADDRNOTAVAIL`, `ENODEV`.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&mut self, addr: SocketAddr) -> Result<(), OsError> {
        let mut addr = sockaddr::from_std(addr);
        self.step("rdma_bind_addr", |id| {
            // SAFETY: the id exists and is locked; the address is a local of the size of any.
            unsafe { ffi::rdma_bind_addr(id, (&raw mut addr).cast()) }
        })
    }

    /// Finds the device and the neighbour for `dst`: ADDR_RESOLVED or ADDR_ERROR, after `timeout` at the latest.
    ///
    /// # Errors
    ///
    /// Of [`rdma_resolve_addr(3)`](https://man7.org/linux/man-pages/man3/rdma_resolve_addr.3.html).
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        &mut self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<(), OsError> {
        let mut src = src.map(sockaddr::from_std);
        let mut dst = sockaddr::from_std(dst);
        let src = src
            .as_mut()
            .map_or(ptr::null_mut(), |src| ptr::from_mut(src).cast());
        self.step("rdma_resolve_addr", |id| {
            // SAFETY: the id exists and is locked; the addresses are locals of the size of any, or null.
            unsafe { ffi::rdma_resolve_addr(id, src, (&raw mut dst).cast(), millis(timeout)) }
        })
    }

    /// Finds the route to the resolved address: ROUTE_RESOLVED or ROUTE_ERROR, after `timeout` at the latest.
    ///
    /// # Errors
    ///
    /// Of [`rdma_resolve_route(3)`](https://man7.org/linux/man-pages/man3/rdma_resolve_route.3.html).
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&mut self, timeout: Duration) -> Result<(), OsError> {
        self.step("rdma_resolve_route", |id| {
            // SAFETY: the id exists and is locked.
            unsafe { ffi::rdma_resolve_route(id, millis(timeout)) }
        })
    }

    /// The local address, once there is one.
    #[must_use]
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id exists and is locked.
        self.addr(|id| unsafe { ffi::rdma_get_local_addr(id) })
    }

    /// The peer's address, once it is known.
    #[must_use]
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id exists and is locked.
        self.addr(|id| unsafe { ffi::rdma_get_peer_addr(id) })
    }

    fn addr(&self, which: impl FnOnce(&ffi::rdma_cm_id) -> &libc::sockaddr) -> Option<SocketAddr> {
        self.inner.with(|id| {
            // SAFETY: the id exists and is locked.
            let addr = ptr::from_ref(which(unsafe { &*id }));
            // SAFETY: both addresses of an id lie in unions that hold any address.
            unsafe { sockaddr::from_ptr(addr, size_of::<libc::sockaddr_storage>()) }
        })
    }

    /// The device, once the id is bound to one.
    ///
    /// It is the same for all ids on it, so protection domains and memory made on it serve all of them.
    #[must_use]
    pub fn verbs(&self) -> Option<Context> {
        let raw = self.inner.with(|id| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).verbs }
        });
        // An id keeps its device open, so a list made now has it.
        Devices::get()
            .inspect_err(|error| log::error!("{error}"))
            .ok()?
            .find(raw)
    }

    /// The device's port, once the id is bound to one.
    #[must_use]
    pub fn port_num(&self) -> u8 {
        self.inner.with(|id| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).port_num }
        })
    }

    /// Has the events of this id come in on another channel from now on. Those that wait on the old one come along.
    ///
    /// # Errors
    ///
    /// Of [`rdma_migrate_id(3)`](https://man7.org/linux/man-pages/man3/rdma_migrate_id.3.html).
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<(), OsError> {
        let mut home = self.inner.home();
        let old = home.clone();
        // Nobody may read this id's events while it moves: from the old channel, nor already from the new one. Two that move in
        // opposite directions must not wait for each other.
        let _locks = match &old {
            Home::Channel(old) if old.is(channel) => return Ok(()),
            Home::Channel(old) if old.as_ptr() < channel.as_ptr() => {
                let first = old.lock();
                (Some(first), channel.lock())
            }
            Home::Channel(old) => {
                let first = channel.lock();
                (Some(old.lock()), first)
            }
            Home::Own => (None, channel.lock()),
        };
        // SAFETY: id and channel exist and are locked. It waits for unacknowledged events, and there are none outside these locks.
        let ret = unsafe { ffi::rdma_migrate_id(self.inner.raw.as_ptr(), channel.as_ptr()) };
        cvt("rdma_migrate_id", ret)?;
        *home = Home::Channel(channel.clone());
        Ok(())
    }

    /// Calls one step on the id, and takes along the event with which a synchronous one ends.
    fn step(
        &mut self,
        call: &'static str,
        f: impl FnOnce(*mut ffi::rdma_cm_id) -> c_int,
    ) -> Result<(), OsError> {
        let (result, event) = self.inner.with(|id| {
            let result = cvt(call, f(id)).map(drop);
            // SAFETY: the id exists and is locked.
            let event = unsafe { take_event(id) };
            (result, event)
        });
        if event.is_some() {
            self.last_event = event.map(Box::new);
        }
        result
    }
}

/// Takes the event that a synchronous call left in the id, and acknowledges it, so that nothing waits for it later.
///
/// # Safety
///
/// `id` exists, and nobody else uses it meanwhile.
unsafe fn take_event(id: *mut ffi::rdma_cm_id) -> Option<CmEvent> {
    // SAFETY: the caller vouches for the id.
    let raw = NonNull::new(unsafe { (*id).event })?;
    // SAFETY: librdmacm keeps the event there until it is acknowledged.
    let event = unsafe { CmEvent::copy_data(raw.as_ptr()) };
    // SAFETY: the caller vouches for the id; librdmacm, too, takes null for "no event".
    unsafe { (*id).event = ptr::null_mut() };
    // SAFETY: it is acknowledged once, as the id does not name it any more.
    let ret = unsafe { ffi::rdma_ack_cm_event(raw.as_ptr()) };
    log_destroy_error(cvt("rdma_ack_cm_event", ret).map(drop));
    Some(event)
}

impl Inner {
    fn home(&self) -> MutexGuard<'_, Home> {
        // The lock guards no data that a panic could leave half-done.
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` while nobody else uses the id and nobody reads an event of it.
    fn with<T>(&self, f: impl FnOnce(*mut ffi::rdma_cm_id) -> T) -> T {
        let home = self.home();
        let _lock = match &*home {
            Home::Channel(channel) => Some(channel.lock()),
            Home::Own => None,
        };
        f(self.raw.as_ptr())
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
        let result = self.with(|id| {
            // SAFETY: this is the last handle, the queue pair, which holds one, is gone, and all events that were read are
            // acknowledged, so it waits for nobody.
            cvt("rdma_destroy_id", unsafe { ffi::rdma_destroy_id(id) })
        });
        log_destroy_error(result.map(drop));
    }
}

/// A time as librdmacm takes it, rounded up: milliseconds.
fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<CmId>();
    send_and_sync::<EventChannel>();
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_bounded() {
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_secs(2)), 2000);
        assert_eq!(millis(Duration::MAX), c_int::MAX);
    }

    #[test]
    fn port_spaces_are_those_of_the_header() {
        assert_eq!(PortSpace::TCP.raw(), ffi::rdma_port_space::RDMA_PS_TCP);
        assert_eq!(PortSpace::UDP.raw(), ffi::rdma_port_space::RDMA_PS_UDP);
        assert_eq!(PortSpace::IB.raw(), ffi::rdma_port_space::RDMA_PS_IB);
        assert_eq!(PortSpace::IPOIB.raw(), ffi::rdma_port_space::RDMA_PS_IPOIB);
    }
}
