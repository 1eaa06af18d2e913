//! Work requests that bind or invalidate memory windows.
#![allow(unsafe_code)]

use std::{mem::MaybeUninit, ops::Range};

use rdma_status::OsError;

use super::QueuePair;
use crate::{
    sys::ffi,
    verbs::memory::{AccessFlags, MemoryRegion, MemoryWindow},
};

impl QueuePair {
    /// Posts a request that binds a window to the bytes `part` of a region.
    ///
    /// After the device has executed the request, the peer of this queue pair can access these
    /// bytes with the operations that `access` permits. The peer uses the key that
    /// [`MemoryWindow::rkey`] returns after this call. The device executes later requests of this
    /// queue pair after the bind, so the program may immediately send the key to the peer through
    /// this queue pair. The bind has a completion with `wr_id` if it fails, or if `signaled` is
    /// true.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` in these cases:
    ///
    /// * the window is already bound;
    /// * `part` is empty or exceeds the region;
    /// * the objects belong to different protection domains;
    /// * the type of the queue pair is neither RC nor UC;
    /// * the queue pair was created with [`with_send_ops`](Self::with_send_ops).
    ///
    /// Otherwise returns the errors of
    /// [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html). If the
    /// region lacks [`AccessFlags::MW_BIND`], the request fails and moves the queue pair to the
    /// error state.
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind_window(
        &self,
        wr_id: u64,
        window: &mut MemoryWindow,
        region: &MemoryRegion,
        part: Range<usize>,
        access: AccessFlags,
        signaled: bool,
    ) -> Result<(), OsError> {
        let is_in_domain = window.pd().is_same_as(self.pd()) && region.pd().is_same_as(self.pd());
        let is_part = part.start < part.end && part.end <= region.len();
        if window.is_bound() || !is_in_domain || !is_part {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let bind_mw = ffi::bind_mw_t {
            mw: window.as_ptr(),
            rkey: window.next_rkey(),
            bind_info: ffi::ibv_mw_bind_info {
                mr: region.as_raw(),
                addr: region.addr() + part.start as u64,
                length: part.len() as u64,
                mw_access_flags: access.bits(),
            },
        };
        let mut wr = request(wr_id, ffi::ibv_wr_opcode::IBV_WR_BIND_MW, signaled);
        wr.bind_mw_tso_union = ffi::bind_mw_tso_union_t { bind_mw };
        // SAFETY: the window and the region exist during the call. Afterwards the window keeps the
        // region alive.
        unsafe { self.post_for_window(wr) }?;
        window.set_bound(region);
        Ok(())
    }

    /// Posts a request that invalidates a bound window and so ends the peer's access.
    ///
    /// After the request has completed, the peer has no access, and the program can bind the window
    /// again. The request has a completion with `wr_id` if the request fails, or if `signaled` is
    /// true. The request fails if the peer has already invalidated the window.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` in these cases:
    ///
    /// * the window is not bound or belongs to another protection domain;
    /// * the type of the queue pair is neither RC nor UC;
    /// * the queue pair was created with [`with_send_ops`](Self::with_send_ops).
    ///
    /// Otherwise returns the errors of
    /// [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn invalidate_window(
        &self,
        wr_id: u64,
        window: &mut MemoryWindow,
        signaled: bool,
    ) -> Result<(), OsError> {
        // The kernel crashes if software RoCE invalidates a window that is not bound.
        if !window.is_bound() || !window.pd().is_same_as(self.pd()) {
            return Err(OsError::new(CALL, libc::EINVAL));
        }
        let mut wr = request(wr_id, ffi::ibv_wr_opcode::IBV_WR_LOCAL_INV, signaled);
        wr.imm_data_invalidated_rkey_union.invalidated_rkey = window.rkey();
        // SAFETY: the request contains only a key, and no memory elements.
        unsafe { self.post_for_window(wr) }?;
        window.set_invalidated();
        Ok(())
    }
}

const CALL: &str = "ibv_post_send";

/// Returns a request without memory elements.
fn request(wr_id: u64, opcode: ffi::ibv_wr_opcode::Type, signaled: bool) -> ffi::ibv_send_wr {
    // SAFETY: `ibv_send_wr` consists of integers, raw pointers and unions of both, for which all
    // zeros is a valid value.
    let mut wr: ffi::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    (wr.wr_id, wr.opcode) = (wr_id, opcode);
    if signaled {
        wr.send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    wr
}
