//! Binds ids to local addresses, and resolves addresses and routes.
#![allow(unsafe_code)]

use std::{net::SocketAddr, ptr, time::Duration};

use libc::c_int;
use rdma_status::{CmEventType, OsError};

use super::CmId;
use crate::{
    sys::{ffi, millis, sockaddr},
    verbs::Context,
};

impl CmId {
    /// Binds the id to a local address. Port 0 selects a free port.
    ///
    /// If the address belongs to a specific interface, this call also binds the id to that
    /// interface's RDMA device.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`rdma_bind_addr(3)`](https://man7.org/linux/man-pages/man3/rdma_bind_addr.3.html):
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `ENODEV`.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&mut self, addr: SocketAddr) -> Result<(), OsError> {
        let mut addr = sockaddr::from_std(addr);
        self.inner.call("rdma_bind_addr", |id| {
            // SAFETY: `id` exists, the lock of its channel is held, and `addr` is a local variable
            // that is large enough for any address.
            unsafe { ffi::rdma_bind_addr(id, (&raw mut addr).cast()) }
        })
    }

    /// Resolves the IP address `dst` to an RDMA address, and binds the id to the local device that
    /// reaches `dst`.
    ///
    /// After at most `timeout`, the event ADDR_RESOLVED or ADDR_ERROR reports the result.
    ///
    /// If `src` is given, the call first binds the id to that address.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`rdma_resolve_addr(3)`](https://man7.org/linux/man-pages/man3/rdma_resolve_addr.3.html).
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
        self.inner.call("rdma_resolve_addr", |id| {
            // SAFETY: `id` exists, and the lock of its channel is held. `dst` is a local variable
            // that is large enough for any address, and `src` is null or points to such a variable.
            unsafe { ffi::rdma_resolve_addr(id, src, (&raw mut dst).cast(), time_limit(timeout)) }
        })?;
        self.wait_if_sync("rdma_resolve_addr", &[CmEventType::ADDR_RESOLVED])
    }

    /// Resolves the route to the address that [`resolve_addr`](Self::resolve_addr) has resolved.
    ///
    /// After at most `timeout`, the event ROUTE_RESOLVED or ROUTE_ERROR reports the result.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the address is not resolved yet. Otherwise returns the errors of
    /// [`rdma_resolve_route(3)`](https://man7.org/linux/man-pages/man3/rdma_resolve_route.3.html).
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&mut self, timeout: Duration) -> Result<(), OsError> {
        self.inner.call_bound("rdma_resolve_route", |id| {
            // SAFETY: `id` exists and has a device, and the lock of its channel is held.
            unsafe { ffi::rdma_resolve_route(id, time_limit(timeout)) }
        })?;
        self.wait_if_sync("rdma_resolve_route", &[CmEventType::ROUTE_RESOLVED])
    }

    /// Returns the local address, or `None` if the id is not bound yet.
    #[must_use]
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.with(|id, _| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            let addr = unsafe { &raw const (*id).route.addr.src_addr_union };
            // SAFETY: `addr` points into the id, which exists, and the union is large enough for
            // any address.
            unsafe { sockaddr::from_ptr(addr.cast(), size_of::<libc::sockaddr_storage>()) }
        })
    }

    /// Returns the peer's address, or `None` if it is not known yet.
    #[must_use]
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.with(|id, _| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            let addr = unsafe { &raw const (*id).route.addr.dst_addr_union };
            // SAFETY: `addr` points into the id, which exists, and the union is large enough for
            // any address.
            unsafe { sockaddr::from_ptr(addr.cast(), size_of::<libc::sockaddr_storage>()) }
        })
    }

    /// Returns whether the id is bound to a device.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.inner.with(|id, _| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            !unsafe { (*id).verbs }.is_null()
        })
    }

    /// Returns the id's device. Returns `None` if the id is not bound to a device yet, if the
    /// device was removed, or if an error occurs. An error is logged.
    ///
    /// All ids on a device return the same [`Context`]. Each of these ids can use the protection
    /// domains and the memory that the program creates on this `Context`.
    #[must_use]
    pub fn verbs(&self) -> Option<Context> {
        self.device()
            .inspect_err(|error| {
                error!(
                    Rdma,
                    "cannot find the RDMA device of a connection manager id: {error}"
                );
            })
            .ok()?
    }

    /// Returns the id's device like [`verbs`](Self::verbs), but returns an error instead of logging
    /// it.
    ///
    /// # Errors
    ///
    /// Returns `EMFILE`, `ENFILE` or `ENOMEM` if there are too few free descriptors or too little
    /// memory to list the devices.
    pub fn device(&self) -> Result<Option<Context>, OsError> {
        let raw = self.inner.with(|id, _| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            unsafe { (*id).verbs }
        });
        // `self` keeps the id alive, and the id keeps its device open, so `raw` is still valid.
        self.inner.channel().device(raw)
    }

    /// Returns the number of the device's port that the id uses. The first port has the number 1.
    /// Returns 0 if the id is not bound to a device yet.
    #[must_use]
    pub fn port_num(&self) -> u8 {
        self.inner.with(|id, _| {
            // SAFETY: `id` exists, and the lock of its channel is held.
            unsafe { (*id).port_num }
        })
    }
}

/// Converts a time limit to the unit of librdmacm's functions: whole milliseconds, rounded up and
/// at most `c_int::MAX`.
fn time_limit(time: Duration) -> c_int {
    c_int::try_from(millis(time)).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_bounded() {
        assert_eq!(time_limit(Duration::from_micros(1)), 1);
        assert_eq!(time_limit(Duration::from_secs(2)), 2000);
        assert_eq!(time_limit(Duration::MAX), c_int::MAX);
    }
}
