//! libibverbs functions that the bindings lack or declare incorrectly.
//!
//! `infiniband/verbs.h` implements some functions inline or as macros. Some of them call the inline
//! function `verbs_get_ctx`, which finds the `verbs_context` that contains an `ibv_context`. In the
//! generated bindings, `verbs_get_ctx` compares with a wrong constant and therefore never finds a
//! `verbs_context`. So this crate must not call any function of the bindings that uses
//! `verbs_get_ctx`.
#![allow(unsafe_code)]

use std::{
    mem::{offset_of, size_of},
    ptr,
};

use nix::errno::Errno;

use super::ffi;

/// Calls `ibv_query_gid_ex(3)`, which returns 0 or an error number.
///
/// # Safety
///
/// `context` is open, and `entry` is valid for writes.
pub(crate) unsafe fn ibv_query_gid_ex(
    context: *mut ffi::ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ffi::ibv_gid_entry,
) -> libc::c_int {
    let size = size_of::<ffi::ibv_gid_entry>();
    // SAFETY: the caller guarantees that `context` and `entry` are valid. `size` is the size of
    // `*entry`. The flags are 0, because none are defined.
    unsafe { ffi::_ibv_query_gid_ex(context, port_num, gid_index, entry, 0, size) }
}

/// Calls `ibv_query_gid_table(3)`, which returns the number of written entries, or a negated error
/// number.
///
/// # Safety
///
/// `context` is open, and `entries` is valid for writes of `max_entries` entries.
pub(crate) unsafe fn ibv_query_gid_table(
    context: *mut ffi::ibv_context,
    entries: *mut ffi::ibv_gid_entry,
    max_entries: usize,
) -> libc::ssize_t {
    let size = size_of::<ffi::ibv_gid_entry>();
    // SAFETY: the caller guarantees that `context` and `entries` are valid. `size` is the size of
    // one entry. The flags are 0, because none are defined.
    unsafe { ffi::_ibv_query_gid_table(context, entries, max_entries, 0, size) }
}

/// Returns the `verbs_context` that contains `context`. Returns `None` if no `verbs_context`
/// contains `context`, or if the `verbs_context` is too small to contain the field at the offset
/// `op`.
///
/// `verbs_get_ctx_op` of `infiniband/verbs.h` begins with the same checks.
///
/// # Safety
///
/// `context` is open, or has the layout of an open context.
unsafe fn extended_context(
    context: *mut ffi::ibv_context,
    op: usize,
) -> Option<*mut ffi::verbs_context> {
    const CONTEXT: usize = offset_of!(ffi::verbs_context, context);
    const SIZE: usize = size_of::<ffi::verbs_context>();

    // SAFETY: the caller guarantees that `context` is open or has the layout of an open context.
    let abi_compat = unsafe { (*context).abi_compat };
    // The value `__VERBS_ABI_IS_EXTENDED`, which is `UINTPTR_MAX`, marks a context that is part of
    // a `verbs_context`.
    if abi_compat.addr() != usize::MAX {
        return None;
    }
    let extended = context
        .wrapping_byte_sub(CONTEXT)
        .cast::<ffi::verbs_context>();
    // SAFETY: the mark that was checked above shows that `context` is part of a `verbs_context`. In
    // every version of libibverbs, the field `sz` directly precedes the context.
    let sz = unsafe { (*extended).sz };
    // Newer versions of libibverbs prepend operations to the structure. Therefore the structure
    // contains an operation if `sz` is at least the distance in bytes from the operation to the end
    // of the structure.
    (sz >= SIZE - op).then_some(extended)
}

/// Returns the driver's operation `$op` as `verbs_get_ctx_op` of `infiniband/verbs.h` does, or
/// `None` if the driver lacks it.
///
/// The caller guarantees that `$context` is open.
macro_rules! driver_operation {
    ($context:expr, $op:ident) => {
        // SAFETY: the caller of this macro guarantees that `$context` is open.
        unsafe { extended_context($context, offset_of!(ffi::verbs_context, $op)) }
            // SAFETY: `extended_context` has checked that the structure contains the operation.
            .and_then(|extended| unsafe { (*extended).$op })
    };
}

/// Queries a port as `ibv_query_port(3)` does. Returns 0 or an error number.
///
/// The function that libibverbs exports under that name fills in an older, shorter structure, which
/// lacks the field `port_cap_flags2`. In C, programs call the inline function `___ibv_query_port`.
/// This function does the same in Rust.
///
/// # Safety
///
/// `context` is open, and `attr` is valid for writes and initialised.
pub(crate) unsafe fn ibv_query_port(
    context: *mut ffi::ibv_context,
    port_num: u8,
    attr: *mut ffi::ibv_port_attr,
) -> libc::c_int {
    match driver_operation!(context, query_port) {
        // SAFETY: the driver has set this operation. The caller guarantees that `context` and
        // `attr` are valid, and the size is the size of `*attr`.
        Some(op) => unsafe { op(context, port_num, attr, size_of::<ffi::ibv_port_attr>()) },
        // SAFETY: this call writes the older structure, which is a prefix of `*attr`. The other
        // fields of `*attr` are already initialised.
        None => unsafe { ffi::ibv_query_port(context, port_num, attr.cast()) },
    }
}

/// Queries a device as `ibv_query_device_ex(3)` does. Returns 0 or an error number. Fields that the
/// driver does not fill in stay zero.
///
/// # Safety
///
/// `context` is open, and `attr` is valid for writes and zeroed.
pub(crate) unsafe fn ibv_query_device_ex(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_device_attr_ex,
) -> libc::c_int {
    let ret = driver_operation!(context, query_device_ex).map_or(libc::EOPNOTSUPP, |op| {
        let size = size_of::<ffi::ibv_device_attr_ex>();
        // SAFETY: the driver has set this operation. The caller guarantees that `context` and
        // `attr` are valid, and `size` is the size of `*attr`.
        unsafe { op(context, ptr::null(), attr, size) }
    });
    if ret != libc::EOPNOTSUPP && ret != libc::ENOSYS {
        return ret;
    }
    // SAFETY: the caller guarantees that `context` and `attr` are valid. This call writes the older
    // structure, which is the first member of `*attr`.
    unsafe { ffi::ibv_query_device(context, attr.cast()) }
}

/// Calls `ibv_create_cq_ex(3)`, which returns a new queue, or null if it fails.
///
/// # Safety
///
/// `context` is open, and the objects in `attr` exist and belong to the same device.
pub(crate) unsafe fn ibv_create_cq_ex(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex {
    match driver_operation!(context, create_cq_ex) {
        // SAFETY: the driver has set this operation, and the caller fulfils its requirements.
        Some(op) => unsafe { op(context, attr) },
        None => not_supported(),
    }
}

/// Calls `ibv_create_qp_ex(3)`, which returns a new queue pair, or null if it fails.
///
/// `comp_mask` must contain at least one bit besides `IBV_QP_INIT_ATTR_PD`. If only that bit is
/// set, the inline function in C calls `ibv_create_qp`, but this function does not.
///
/// # Safety
///
/// `context` is open, and the objects in `attr` exist and belong to the same device.
pub(crate) unsafe fn ibv_create_qp_ex(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    match driver_operation!(context, create_qp_ex) {
        // SAFETY: the driver has set this operation, and the caller fulfils its requirements.
        Some(op) => unsafe { op(context, attr) },
        None => not_supported(),
    }
}

/// Calls `ibv_advise_mr(3)`, which returns 0 or an error number.
///
/// # Safety
///
/// The domain `pd` exists, and each element of `sg_list` lies in a memory region of that domain.
pub(crate) unsafe fn ibv_advise_mr(
    pd: *mut ffi::ibv_pd,
    advice: ffi::ib_uverbs_advise_mr_advice::Type,
    flags: u32,
    sg_list: &mut [ffi::ibv_sge],
) -> libc::c_int {
    // SAFETY: the caller guarantees that `pd` exists, so its context is open.
    let context = unsafe { (*pd).context };
    let count = sg_list.len() as u32;
    driver_operation!(context, advise_mr).map_or(libc::EOPNOTSUPP, |op| {
        // SAFETY: the driver has set this operation, and the caller fulfils its requirements.
        unsafe { op(pd, advice, flags, sg_list.as_mut_ptr(), count) }
    })
}

/// Calls `ibv_alloc_dm(3)`, which returns device memory, or null if it fails.
///
/// # Safety
///
/// `context` is open.
pub(crate) unsafe fn ibv_alloc_dm(
    context: *mut ffi::ibv_context,
    attr: &mut ffi::ibv_alloc_dm_attr,
) -> *mut ffi::ibv_dm {
    match driver_operation!(context, alloc_dm) {
        // SAFETY: the driver has set this operation, and the caller fulfils its requirements.
        Some(op) => unsafe { op(context, attr) },
        None => not_supported(),
    }
}

/// Calls `ibv_free_dm(3)`, which returns 0 or an error number.
///
/// # Safety
///
/// `ibv_alloc_dm` allocated `dm`, no memory region refers to it, and no code uses it after this
/// call.
pub(crate) unsafe fn ibv_free_dm(dm: *mut ffi::ibv_dm) -> libc::c_int {
    // SAFETY: the caller guarantees that `dm` exists, so its context is open.
    let context = unsafe { (*dm).context };
    // SAFETY: the driver has set this operation, and the caller fulfils its requirements.
    driver_operation!(context, free_dm).map_or(libc::EOPNOTSUPP, |op| unsafe { op(dm) })
}

/// Calls `ibv_reg_dm_mr(3)` for all `length` bytes of `dm`. Returns a new region, or null with
/// `errno` set.
///
/// # Safety
///
/// `pd` and `dm` exist and belong to the same device, and `dm` is `length` bytes long.
pub(crate) unsafe fn ibv_reg_dm_mr(
    pd: *mut ffi::ibv_pd,
    dm: *mut ffi::ibv_dm,
    length: usize,
    access: u32,
) -> *mut ffi::ibv_mr {
    // SAFETY: the caller guarantees that `pd` exists, so its context is open.
    let context = unsafe { (*pd).context };
    match driver_operation!(context, reg_dm_mr) {
        // SAFETY: the driver has set this operation, and the caller fulfils its requirements.
        Some(op) => unsafe { op(pd, dm, 0, length, access) },
        None => not_supported(),
    }
}

/// Calls `ibv_alloc_td(3)`, which returns a new thread domain, or null if it fails.
///
/// # Safety
///
/// `context` is open.
pub(crate) unsafe fn ibv_alloc_td(
    context: *mut ffi::ibv_context,
    attr: &mut ffi::ibv_td_init_attr,
) -> *mut ffi::ibv_td {
    match driver_operation!(context, alloc_td) {
        // SAFETY: the driver has set this operation, and the caller fulfils its requirements.
        Some(op) => unsafe { op(context, attr) },
        None => not_supported(),
    }
}

/// Calls `ibv_dealloc_td(3)`, which returns 0 or an error number.
///
/// # Safety
///
/// `ibv_alloc_td` allocated `td`, its parent domains have been freed, and no code uses it after
/// this call.
pub(crate) unsafe fn ibv_dealloc_td(td: *mut ffi::ibv_td) -> libc::c_int {
    // SAFETY: the caller guarantees that `td` exists, so its context is open.
    let context = unsafe { (*td).context };
    // SAFETY: the driver has set this operation, and the caller fulfils its requirements.
    driver_operation!(context, dealloc_td).map_or(libc::EOPNOTSUPP, |op| unsafe { op(td) })
}

/// Calls `ibv_alloc_parent_domain(3)`, which returns a new domain, or null if it fails.
///
/// # Safety
///
/// `context` is open, and the objects in `attr` exist and belong to the same device.
pub(crate) unsafe fn ibv_alloc_parent_domain(
    context: *mut ffi::ibv_context,
    attr: &mut ffi::ibv_parent_domain_init_attr,
) -> *mut ffi::ibv_pd {
    match driver_operation!(context, alloc_parent_domain) {
        // SAFETY: the driver has set this operation, and the caller fulfils its requirements.
        Some(op) => unsafe { op(context, attr) },
        None => not_supported(),
    }
}

fn not_supported<T>() -> *mut T {
    Errno::EOPNOTSUPP.set();
    ptr::null_mut()
}

/// Calls `ibv_alloc_mw(3)` for a type 2 window. Returns a new window, or null if it fails.
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

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    unsafe extern "C" fn query_port(
        _context: *mut ffi::ibv_context,
        port_num: u8,
        attr: *mut ffi::ibv_port_attr,
        size: usize,
    ) -> libc::c_int {
        assert_eq!((port_num, size), (7, 52));
        // SAFETY: the test below passes a pointer to a local variable.
        unsafe { (*attr).flags = 5 };
        libc::ERANGE
    }

    /// Returns a context with the layout that libibverbs uses. Only its operation `query_port` is
    /// set.
    fn context() -> Box<ffi::verbs_context> {
        // SAFETY: `verbs_context` consists of integers, pointers and optional functions, for which
        // all zeros is a valid value.
        let mut context: Box<ffi::verbs_context> =
            unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
        context.sz = size_of::<ffi::verbs_context>();
        context.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        context.query_port = Some(query_port);
        context
    }

    #[test]
    fn the_drivers_query_port_is_called() {
        let mut context = context();
        let mut attr = MaybeUninit::<ffi::ibv_port_attr>::zeroed();
        let raw = (&raw mut *context).wrapping_byte_add(offset_of!(ffi::verbs_context, context));
        // SAFETY: `raw` and `attr` have the layout that libibverbs uses, and the operation is the
        // function `query_port` above.
        let ret = unsafe { ibv_query_port(raw.cast(), 7, attr.as_mut_ptr()) };
        assert_eq!(ret, libc::ERANGE);
        // SAFETY: `attr` was zeroed, and then written by the operation.
        assert_eq!(unsafe { attr.assume_init() }.flags, 5);
    }

    #[test]
    fn context_without_operation_is_detected() {
        let find = |context: &mut ffi::verbs_context| {
            let raw =
                (&raw mut *context).wrapping_byte_add(offset_of!(ffi::verbs_context, context));
            driver_operation!(raw.cast(), query_port).is_some()
        };
        assert!(find(&mut context()));
        let mut old = context();
        old.context.abi_compat = ptr::null_mut();
        assert!(!find(&mut old));
        let mut short = context();
        short.sz = size_of::<ffi::verbs_context>() - offset_of!(ffi::verbs_context, query_port) - 1;
        assert!(!find(&mut short));
        let mut unset = context();
        unset.query_port = None;
        assert!(!find(&mut unset));
    }
}
