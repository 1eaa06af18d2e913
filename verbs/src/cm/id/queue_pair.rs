//! Creates and destroys the queue pair of an id.
#![allow(unsafe_code)]

use std::{mem::MaybeUninit, ptr, sync::Arc};

use rdma_status::OsError;

use super::CmId;
use crate::{
    cm::owned_id::OwnedId,
    sys::{cvt_ptr, ffi},
    verbs::{ProtectionDomain, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpOwner, QpState, QueuePair},
};

impl CmId {
    /// Creates the id's queue pair in a protection domain of the program.
    ///
    /// librdmacm changes the queue pair's state when the state of the connection changes. The
    /// program may post receives immediately.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if the id already has a queue pair, or if it is not bound to a device. Also
    /// returns `EINVAL` if an argument does not belong to the [`Context`](crate::verbs::Context)
    /// that [`verbs`](Self::verbs) returns: a `Context` that the program opened on the same device
    /// is not sufficient. Otherwise returns the errors of
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
            // SAFETY: `id` exists, and the lock of its channel is held.
            let verbs = unsafe { (*id).verbs };
            // SAFETY: `id` exists, and the lock of its channel is held.
            let old = unsafe { (*id).qp };
            if verbs != pd.context().as_ptr() || !old.is_null() {
                return Err(OsError::new(CALL, libc::EINVAL));
            }
            cvt_ptr(CALL, || {
                // SAFETY: `id` exists, and the lock of its channel is held. The domain `pd` and the
                // queues in `raw` exist and belong to the id's device.
                if unsafe { ffi::rdma_create_qp(id, pd.as_ptr(), &raw mut raw) } != 0 {
                    return ptr::null_mut();
                }
                // SAFETY: `id` exists, and the lock of its channel is held. The call above stored
                // the queue pair in the id.
                unsafe { (*id).qp }
            })
        })?;
        let owner = Arc::clone(&self.inner);
        // SAFETY: `qp` was created above with `pd` and `attr`, and the call stored its capacities
        // in `raw`. After `release_qp`, librdmacm no longer uses it.
        Ok(unsafe { QueuePair::from_cm(qp, QpCap::from_raw(raw.cap), pd, attr, owner) })
    }

    /// Returns the attributes that move a queue pair to `state`. The program passes them to
    /// [`modify`](crate::verbs::QueuePair::modify) if it did not create the queue pair through the
    /// id.
    ///
    /// # Errors
    ///
    /// Returns the errors of
    /// [`rdma_init_qp_attr(3)`](https://man7.org/linux/man-pages/man3/rdma_init_qp_attr.3.html).
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init_qp_attr(&mut self, state: QpState) -> Result<QpAttr, OsError> {
        let mut raw = MaybeUninit::<ffi::ibv_qp_attr>::zeroed();
        // SAFETY: `ibv_qp_attr` consists of integers, for which all zeros is a valid value.
        let raw = unsafe { raw.assume_init_mut() };
        raw.qp_state = state.raw();
        let mut mask = 0;
        self.inner.call("rdma_init_qp_attr", |id| {
            // SAFETY: `id` exists, and the lock of its channel is held. `raw` and `mask` are local
            // variables.
            unsafe { ffi::rdma_init_qp_attr(id, raw, &raw mut mask) }
        })?;
        Ok(QpAttr::from_raw(
            raw,
            QpAttrMask::from_bits(mask.cast_unsigned()),
        ))
    }
}

impl QpOwner for OwnedId {
    /// Removes the queue pair from the id. `rdma_destroy_qp` would also destroy it, while this
    /// method holds the lock of the id's channel. The destruction can take long, and other threads
    /// need the lock to use other ids.
    fn release_qp(&self) {
        self.with(|id, local| {
            // SAFETY: the queue pair keeps `id` alive, and the lock of its channel is held. All
            // events that were read have been acknowledged.
            unsafe { local.groups.leave_all(id) };
            // SAFETY: the queue pair keeps `id` alive, and the lock of its channel is held, so
            // librdmacm does not use the queue pair now. It has created no completion queues for
            // it, because `create_qp` passes those of the program.
            unsafe { (*id).qp = ptr::null_mut() };
        });
    }
}
