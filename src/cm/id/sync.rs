//! What only ids without a channel of the program's can do.
#![allow(unsafe_code)]

use std::ptr;

use super::{CmId, Home, take_event};
use crate::{
    cm::AddrInfo,
    status::OsError,
    sys::{cvt, cvt_ptr, ffi},
};

impl CmId {
    /// Makes a synchronous id for what [`AddrInfo::new`] found: bound to it on the passive side; with address and route resolved on
    /// the active side. The queue pair is for [`create_qp`](Self::create_qp) to make.
    ///
    /// # Errors
    ///
    /// Of [`rdma_create_ep(3)`](https://man7.org/linux/man-pages/man3/rdma_create_ep.3.html).
    #[doc(alias = "rdma_create_ep")]
    pub fn create_ep(info: &AddrInfo) -> Result<Self, OsError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is a local, the list exists and is not changed; without attributes no queue pair is made.
        let ret = unsafe {
            ffi::rdma_create_ep(
                &raw mut raw,
                info.as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        cvt("rdma_create_ep", ret)?;
        let mut this = Self::from_raw(cvt_ptr("rdma_create_ep", raw)?, Home::Own);
        let event = this.inner.with(|id| {
            // SAFETY: the id exists and is nobody else's.
            unsafe { take_event(id) }
        });
        this.last_event = event.map(Box::new);
        Ok(this)
    }

    /// Waits for the next connect request of a synchronous listener. What the request carries is in the new id's
    /// [`last_event`](Self::last_event).
    ///
    /// # Errors
    ///
    /// `EINVAL` for an id of a channel; others of [`rdma_get_request(3)`](https://man7.org/linux/man-pages/man3/rdma_get_request.3.html).
    #[doc(alias = "rdma_get_request")]
    pub fn get_request(&mut self) -> Result<Self, OsError> {
        let mut raw = ptr::null_mut();
        let ret = self.inner.with(|id| {
            // SAFETY: the id exists and is locked; the out pointer is a local.
            unsafe { ffi::rdma_get_request(id, &raw mut raw) }
        });
        cvt("rdma_get_request", ret)?;
        let mut this = Self::from_raw(cvt_ptr("rdma_get_request", raw)?, Home::Own);
        let event = this.inner.with(|id| {
            // SAFETY: the id exists and is nobody else's. The listener's destruction would wait for this event.
            let event = unsafe { take_event(id) };
            // SAFETY: as above. It has its listener's context, whose events are not its own.
            unsafe { (*id).context = ptr::null_mut() };
            event
        });
        this.last_event = event.map(Box::new);
        Ok(this)
    }
}
