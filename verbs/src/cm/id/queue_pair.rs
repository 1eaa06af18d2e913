//! The queue pair of an id.
#![allow(unsafe_code)]

use std::{mem::MaybeUninit, ptr::NonNull, sync::Arc};

use rdma_status::OsError;

use super::CmId;
use crate::{
    cm::owned_id::OwnedId,
    sys::{cvt, cvt_ptr, ffi},
    verbs::{ProtectionDomain, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpOwner, QpState, QueuePair},
};

impl CmId {
    /// Creates the id's queue pair, in a protection domain of the program.
    ///
    /// The id modifies its state along with that of the connection; receives may be posted
    /// immediately.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the id already has a queue pair, is not bound to a device, or an argument
    /// belongs to another device than that of [`verbs`](Self::verbs) (a device that the program
    /// opened itself is another one); otherwise those of
    /// [`rdma_create_qp(3)`](https://man7.org/linux/man-pages/man3/rdma_create_qp.3.html).
    #[doc(alias = "rdma_create_qp")]
    pub fn create_qp(
        &mut self,
        pd: &ProtectionDomain,
        attr: &QpInitAttr<'_>,
    ) -> Result<QueuePair, OsError> {
        const CALL: &str = "rdma_create_qp";
        attr.check(CALL, pd)?;
        let mut raw = attr.to_raw();
        let qp = self.inner.with(|id, _| {
            // SAFETY: the id exists and is locked.
            let verbs = unsafe { (*id).verbs };
            // SAFETY: the id exists and is locked.
            let old = unsafe { (*id).qp };
            if verbs != pd.context().as_ptr() || !old.is_null() {
                return Err(OsError::new(CALL, libc::EINVAL));
            }
            // SAFETY: the id exists and is locked; domain and queues exist and belong to its
            // device.
            cvt(CALL, unsafe {
                ffi::rdma_create_qp(id, pd.as_ptr(), &raw mut raw)
            })?;
            // SAFETY: the id exists and is locked; the call stored the queue pair there.
            cvt_ptr(CALL, unsafe { (*id).qp })
        })?;
        let owner = Arc::clone(&self.inner);
        // SAFETY: the queue pair was just created with these attributes, nothing else refers to it,
        // and the owner destroys it.
        Ok(unsafe { QueuePair::from_cm(qp, QpCap::from_raw(raw.cap), pd, attr, owner) })
    }

    /// Returns the attributes for moving the program's own queue pair to `state`.
    ///
    /// # Errors
    ///
    /// Those of
    /// [`rdma_init_qp_attr(3)`](https://man7.org/linux/man-pages/man3/rdma_init_qp_attr.3.html).
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init_qp_attr(&mut self, state: QpState) -> Result<QpAttr, OsError> {
        let mut raw = MaybeUninit::<ffi::ibv_qp_attr>::zeroed();
        // SAFETY: the C structure holds only integers: all zero is a valid value.
        let raw = unsafe { raw.assume_init_mut() };
        raw.qp_state = state.raw();
        let mut mask = 0;
        self.inner.call("rdma_init_qp_attr", |id| {
            // SAFETY: the id exists and is locked; the structure and the mask are locals.
            unsafe { ffi::rdma_init_qp_attr(id, raw, &raw mut mask) }
        })?;
        Ok(QpAttr::from_raw(
            raw,
            QpAttrMask::from_bits(mask.cast_unsigned()),
        ))
    }
}

impl QpOwner for OwnedId {
    fn destroy_qp(&self, _raw: NonNull<ffi::ibv_qp>) {
        self.with(|id, local| {
            // SAFETY: the id exists, as the queue pair holds it, and is locked; its events are
            // acknowledged as they are read.
            unsafe { local.groups.leave_all(id) };
            // SAFETY: the id exists, as the queue pair holds it, and is locked; it has this queue
            // pair and no other.
            unsafe { ffi::rdma_destroy_qp(id) };
        });
    }
}
