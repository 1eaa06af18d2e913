//! The inline functions of `infiniband/verbs.h` for type 2 memory windows.
#![allow(unsafe_code)]

use std::ptr;

use nix::errno::Errno;

use super::ffi;

/// Calls `ibv_alloc_mw(3)` for a type 2 window. Returns a new window, or null with `errno` set.
///
/// # Safety
///
/// The domain `pd` exists.
pub(crate) unsafe fn ibv_alloc_mw(pd: *mut ffi::ibv_pd) -> *mut ffi::ibv_mw {
    // SAFETY: the caller guarantees that `pd` exists.
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
/// `ibv_alloc_mw` allocated `mw`, and no code uses it after this call.
pub(crate) unsafe fn ibv_dealloc_mw(mw: *mut ffi::ibv_mw) -> libc::c_int {
    // SAFETY: the caller guarantees that `mw` exists.
    let context = unsafe { (*mw).context };
    // SAFETY: the `context` of an existing object is open.
    let operation = unsafe { (*context).ops.dealloc_mw };
    // SAFETY: the driver has set this operation for the device of `mw`.
    operation.map_or(libc::EOPNOTSUPP, |operation| unsafe { operation(mw) })
}
