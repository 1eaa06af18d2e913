//! Calls of libibverbs that the bindings lack or get wrong.
//!
//! `infiniband/verbs.h` implements part of its interface inline: by macros, and by reading the
//! `verbs_context` that contains an `ibv_context`. The bindings' `verbs_get_ctx` compares with the
//! wrong constant and never finds one, so their functions that use it must not be called.
#![allow(unsafe_code)]

use std::{
    mem::{offset_of, size_of},
    ptr,
};

use nix::errno::Errno;

use super::ffi;

/// `ibv_query_gid_ex(3)`: returns 0 or an error number.
///
/// # Safety
///
/// `context` is open, `entry` valid for writes.
pub(crate) unsafe fn ibv_query_gid_ex(
    context: *mut ffi::ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ffi::ibv_gid_entry,
) -> libc::c_int {
    let size = size_of::<ffi::ibv_gid_entry>();
    // SAFETY: the caller guarantees the conditions on the pointers; `size` is that of the entry. No
    // flags are defined.
    unsafe { ffi::_ibv_query_gid_ex(context, port_num, gid_index, entry, 0, size) }
}

/// `ibv_query_gid_table(3)`: returns the number of entries written, or an error number negated.
///
/// # Safety
///
/// `context` is open, `entries` valid for writes of `max_entries` entries.
pub(crate) unsafe fn ibv_query_gid_table(
    context: *mut ffi::ibv_context,
    entries: *mut ffi::ibv_gid_entry,
    max_entries: usize,
) -> libc::ssize_t {
    let size = size_of::<ffi::ibv_gid_entry>();
    // SAFETY: the caller guarantees the conditions on the pointers; `size` is that of one entry. No
    // flags are defined.
    unsafe { ffi::_ibv_query_gid_table(context, entries, max_entries, 0, size) }
}

/// Returns the `verbs_context` that contains an open context, if it includes the offset `op`.
///
/// This is the first half of `verbs_get_ctx_op` of `infiniband/verbs.h`.
///
/// # Safety
///
/// `context` is open, or laid out as an open one.
unsafe fn around(context: *mut ffi::ibv_context, op: usize) -> Option<*mut ffi::verbs_context> {
    const CONTEXT: usize = offset_of!(ffi::verbs_context, context);
    const SIZE: usize = size_of::<ffi::verbs_context>();

    // SAFETY: the caller guarantees the conditions on the context.
    let abi_compat = unsafe { (*context).abi_compat };
    // `__VERBS_ABI_IS_EXTENDED`, which is `UINTPTR_MAX`, marks a context that is part of a
    // `verbs_context`.
    if abi_compat.addr() != usize::MAX {
        return None;
    }
    let extended = context
        .wrapping_byte_sub(CONTEXT)
        .cast::<ffi::verbs_context>();
    // SAFETY: libibverbs set the mark above, so the context is a `verbs_context`'s; `sz` directly
    // precedes it in every version.
    let sz = unsafe { (*extended).sz };
    // New operations are added in front: the structure includes an operation if its size, counted
    // from the end, does.
    (sz >= SIZE - op).then_some(extended)
}

/// `verbs_get_ctx_op` of `infiniband/verbs.h`: the driver's operation of that name, or `None`.
///
/// The context is open.
macro_rules! op {
    ($context:expr, $op:ident) => {
        // SAFETY: the macro's caller guarantees the conditions on the context.
        unsafe { around($context, offset_of!(ffi::verbs_context, $op)) }
            // SAFETY: the structure includes the operation.
            .and_then(|extended| unsafe { (*extended).$op })
    };
}

/// `ibv_query_port(3)`, as `___ibv_query_port` implements it: returns 0 or an error number.
///
/// The exported symbol fills in a shorter, older structure, without the link layer's flags.
///
/// # Safety
///
/// `context` is open, `attr` valid for writes and initialised.
pub(crate) unsafe fn ibv_query_port(
    context: *mut ffi::ibv_context,
    port_num: u8,
    attr: *mut ffi::ibv_port_attr,
) -> libc::c_int {
    match op!(context, query_port) {
        // SAFETY: the driver's own operation, with the caller's pointers and the size of the
        // structure.
        Some(op) => unsafe { op(context, port_num, attr, size_of::<ffi::ibv_port_attr>()) },
        // SAFETY: the older structure is a prefix of the newer one, whose other fields are
        // initialised.
        None => unsafe { ffi::ibv_query_port(context, port_num, attr.cast()) },
    }
}

/// `ibv_query_device_ex(3)`: returns 0 or an error number. Fields unknown to the driver stay zero.
///
/// # Safety
///
/// `context` is open, `attr` valid for writes and zeroed.
pub(crate) unsafe fn ibv_query_device_ex(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_device_attr_ex,
) -> libc::c_int {
    let ret = op!(context, query_device_ex).map_or(libc::EOPNOTSUPP, |op| {
        let size = size_of::<ffi::ibv_device_attr_ex>();
        // SAFETY: the driver's own operation, with the caller's pointers and the size of the
        // structure.
        unsafe { op(context, ptr::null(), attr, size) }
    });
    if ret != libc::EOPNOTSUPP && ret != libc::ENOSYS {
        return ret;
    }
    // SAFETY: the caller guarantees the conditions on both; the older structure is the first
    // member.
    unsafe { ffi::ibv_query_device(context, attr.cast()) }
}

/// `ibv_create_cq_ex(3)`: null with `errno` set, or a new queue.
///
/// # Safety
///
/// `context` is open, and the objects in the attributes exist, on the same device.
pub(crate) unsafe fn ibv_create_cq_ex(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex {
    match op!(context, create_cq_ex) {
        // SAFETY: the driver's own operation, whose rules the caller guarantees.
        Some(op) => unsafe { op(context, attr) },
        None => not_supported(),
    }
}

/// `ibv_create_qp_ex(3)`: null with `errno` set, or a new queue pair.
///
/// `comp_mask` must contain more than a protection domain, which C passes to `ibv_create_qp`.
///
/// # Safety
///
/// `context` is open, and the objects in the attributes exist, on the same device.
pub(crate) unsafe fn ibv_create_qp_ex(
    context: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    match op!(context, create_qp_ex) {
        // SAFETY: the driver's own operation, whose rules the caller guarantees.
        Some(op) => unsafe { op(context, attr) },
        None => not_supported(),
    }
}

/// `ibv_advise_mr(3)`: returns 0 or an error number.
///
/// # Safety
///
/// The domain exists, and all elements belong to regions of the domain.
pub(crate) unsafe fn ibv_advise_mr(
    pd: *mut ffi::ibv_pd,
    advice: ffi::ib_uverbs_advise_mr_advice::Type,
    flags: u32,
    sg_list: &mut [ffi::ibv_sge],
) -> libc::c_int {
    // SAFETY: the caller guarantees the conditions on the domain, which has an open context.
    let context = unsafe { (*pd).context };
    let count = sg_list.len() as u32;
    op!(context, advise_mr).map_or(libc::EOPNOTSUPP, |op| {
        // SAFETY: the driver's own operation, whose rules the caller guarantees.
        unsafe { op(pd, advice, flags, sg_list.as_mut_ptr(), count) }
    })
}

/// `ibv_alloc_dm(3)`: null with `errno` set, or memory of the device.
///
/// # Safety
///
/// `context` is open.
pub(crate) unsafe fn ibv_alloc_dm(
    context: *mut ffi::ibv_context,
    attr: &mut ffi::ibv_alloc_dm_attr,
) -> *mut ffi::ibv_dm {
    match op!(context, alloc_dm) {
        // SAFETY: the driver's own operation, whose rules the caller guarantees.
        Some(op) => unsafe { op(context, attr) },
        None => not_supported(),
    }
}

/// `ibv_free_dm(3)`: returns 0 or an error number.
///
/// # Safety
///
/// The memory was allocated, is freed once, and has no region.
pub(crate) unsafe fn ibv_free_dm(dm: *mut ffi::ibv_dm) -> libc::c_int {
    // SAFETY: the caller guarantees the conditions on the memory, which has an open context.
    let context = unsafe { (*dm).context };
    // SAFETY: the driver's own operation, whose rules the caller guarantees.
    op!(context, free_dm).map_or(libc::EOPNOTSUPP, |op| unsafe { op(dm) })
}

/// `ibv_reg_dm_mr(3)`: null with `errno` set, or a region of all of it.
///
/// # Safety
///
/// Domain and memory exist, on the same device; the memory is `length` bytes long.
pub(crate) unsafe fn ibv_reg_dm_mr(
    pd: *mut ffi::ibv_pd,
    dm: *mut ffi::ibv_dm,
    length: usize,
    access: u32,
) -> *mut ffi::ibv_mr {
    // SAFETY: the caller guarantees the conditions on the domain, which has an open context.
    let context = unsafe { (*pd).context };
    match op!(context, reg_dm_mr) {
        // SAFETY: the driver's own operation, whose rules the caller guarantees.
        Some(op) => unsafe { op(pd, dm, 0, length, access) },
        None => not_supported(),
    }
}

fn not_supported<T>() -> *mut T {
    Errno::EOPNOTSUPP.set();
    ptr::null_mut()
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
        // SAFETY: the test below hands in a structure of its own.
        unsafe { (*attr).flags = 5 };
        libc::ERANGE
    }

    /// A context as libibverbs builds it, with one operation.
    fn context() -> Box<ffi::verbs_context> {
        // SAFETY: a structure of integers, pointers and optional functions: all zero is a valid
        // value.
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
        // SAFETY: both are laid out as libibverbs does it; the operation is the one above.
        let ret = unsafe { ibv_query_port(raw.cast(), 7, attr.as_mut_ptr()) };
        assert_eq!(ret, libc::ERANGE);
        // SAFETY: zeroed, and then written by the operation.
        assert_eq!(unsafe { attr.assume_init() }.flags, 5);
    }

    #[test]
    fn context_without_operation_is_detected() {
        let find = |context: &mut ffi::verbs_context| {
            let raw =
                (&raw mut *context).wrapping_byte_add(offset_of!(ffi::verbs_context, context));
            op!(raw.cast(), query_port).is_some()
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
