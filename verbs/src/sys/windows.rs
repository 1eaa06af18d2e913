//! The inline functions of `infiniband/verbs.h` for memory windows of type 2.
#![allow(unsafe_code)]

use std::ptr;

use nix::errno::Errno;

use super::ffi;

/// Calls `ibv_alloc_mw(3)` for a window of type 2. Returns a new window, or null with `errno` set.
///
/// # Safety
///
/// The domain `pd` exists.
pub(crate) unsafe fn ibv_alloc_mw(pd: *mut ffi::ibv_pd) -> *mut ffi::ibv_mw {
    // SAFETY: `pd` exists, according to the caller.
    let context = unsafe { (*pd).context };
    // SAFETY: the `context` of an existing object is open.
    match unsafe { (*context).ops.alloc_mw } {
        // SAFETY: the driver has set this operation for the device of `pd`.
        Some(operation) => unsafe { operation(pd, ffi::ibv_mw_type::IBV_MW_TYPE_2) },
        None => {
            Errno::EOPNOTSUPP.set();
            ptr::null_mut()
        }
    }
}

/// Calls `ibv_dealloc_mw(3)`, which returns 0 or an error number.
///
/// # Safety
///
/// `mw` was allocated with `ibv_alloc_mw`, and is not used after this call.
pub(crate) unsafe fn ibv_dealloc_mw(mw: *mut ffi::ibv_mw) -> libc::c_int {
    // SAFETY: `mw` exists, according to the caller.
    let context = unsafe { (*mw).context };
    // SAFETY: the `context` of an existing object is open.
    let operation = unsafe { (*context).ops.dealloc_mw };
    // SAFETY: the driver has set this operation for the device of `mw`.
    operation.map_or(libc::EOPNOTSUPP, |operation| unsafe { operation(mw) })
}
