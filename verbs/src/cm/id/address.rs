//! Binding, and resolving addresses and routes.
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
    /// Binds to a local address. Port 0 selects a free port.
    ///
    /// An address that determines the interface also binds the id to its device.
    ///
    /// # Errors
    ///
    /// Those of [`rdma_bind_addr(3)`](https://man7.org/linux/man-pages/man3/rdma_bind_addr.3.html):
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `ENODEV`.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&mut self, addr: SocketAddr) -> Result<(), OsError> {
        let mut addr = sockaddr::from_std(addr);
        self.inner.call("rdma_bind_addr", |id| {
            // SAFETY: the id exists and is locked; the address is a local as large as any.
            unsafe { ffi::rdma_bind_addr(id, (&raw mut addr).cast()) }
        })
    }

    /// Resolves the address `dst` to a device and a neighbour.
    ///
    /// The result is ADDR_RESOLVED or ADDR_ERROR, after `timeout` at the latest.
    ///
    /// With `src`, binds to that address first.
    ///
    /// # Errors
    ///
    /// Those of
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
            // SAFETY: the id exists and is locked; the addresses are locals as large as any, or
            // null.
            unsafe { ffi::rdma_resolve_addr(id, src, (&raw mut dst).cast(), time_limit(timeout)) }
        })?;
        self.complete("rdma_resolve_addr", &[CmEventType::ADDR_RESOLVED])
    }

    /// Resolves the route to the resolved address.
    ///
    /// The result is ROUTE_RESOLVED or ROUTE_ERROR, after `timeout` at the latest.
    ///
    /// # Errors
    ///
    /// `EINVAL` before the address is resolved; otherwise those of
    /// [`rdma_resolve_route(3)`](https://man7.org/linux/man-pages/man3/rdma_resolve_route.3.html).
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&mut self, timeout: Duration) -> Result<(), OsError> {
        self.inner.call_bound("rdma_resolve_route", |id| {
            // SAFETY: the id exists, is locked, and has a device.
            unsafe { ffi::rdma_resolve_route(id, time_limit(timeout)) }
        })?;
        self.complete("rdma_resolve_route", &[CmEventType::ROUTE_RESOLVED])
    }

    /// Returns the local address, if there is one yet.
    #[must_use]
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            let addr = unsafe { &raw const (*id).route.addr.src_addr_union };
            // SAFETY: as above; this union has room for any address.
            unsafe { sockaddr::from_ptr(addr.cast(), size_of::<libc::sockaddr_storage>()) }
        })
    }

    /// Returns the peer's address, if it is known yet.
    #[must_use]
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            let addr = unsafe { &raw const (*id).route.addr.dst_addr_union };
            // SAFETY: as above; this union has room for any address.
            unsafe { sockaddr::from_ptr(addr.cast(), size_of::<libc::sockaddr_storage>()) }
        })
    }

    /// Returns whether the id is bound to a device.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            !unsafe { (*id).verbs }.is_null()
        })
    }

    /// Returns the device, once the id is bound to one. `None` also for a removed device.
    ///
    /// All ids on a device share it, so they can all use protection domains and memory created on
    /// it.
    #[must_use]
    pub fn verbs(&self) -> Option<Context> {
        self.device()
            .inspect_err(|error| error!(Rdma, "cannot find the device of an id: {error}"))
            .ok()?
    }

    /// As [`verbs`](Self::verbs), but returns an error that occurs.
    ///
    /// # Errors
    ///
    /// The process has too few descriptors or too little memory to list its devices.
    pub fn device(&self) -> Result<Option<Context>, OsError> {
        let raw = self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).verbs }
        });
        // The id, which `self` holds, keeps its device open.
        self.inner.channel().device(raw)
    }

    /// Returns the device's port, numbered from 1, once the id is bound to one; 0 before.
    #[must_use]
    pub fn port_num(&self) -> u8 {
        self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            unsafe { (*id).port_num }
        })
    }
}

/// Converts a time to milliseconds, rounded up, as librdmacm takes it.
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
