//! Posts sends with the functions of `ibv_wr_post(3)`. Several of these functions together build
//! one request.
#![allow(unsafe_code)]

use std::{
    mem::MaybeUninit,
    ptr::{self, NonNull},
};

use super::{QpInitAttr, QpType};
use crate::sys::ffi;

/// Returns the `ibv_qp_create_send_ops_flags` of the operations that a queue pair of this type can
/// post with the functions of `ibv_wr_post(3)`.
pub(super) fn flags(qp_type: QpType) -> u64 {
    use ffi::ibv_qp_create_send_ops_flags as c;
    let sends = c::IBV_QP_EX_WITH_SEND | c::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = c::IBV_QP_EX_WITH_RDMA_WRITE | c::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let flags = match qp_type {
        QpType::RC => {
            let atomic =
                c::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | c::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
            sends | writes | c::IBV_QP_EX_WITH_RDMA_READ | atomic | c::IBV_QP_EX_WITH_SEND_WITH_INV
        }
        QpType::UC => sends | writes,
        _ => sends,
    };
    flags.0.into()
}

/// Converts attributes to the C structure, and requests support for the functions of
/// `ibv_wr_post(3)`.
pub(super) fn init_attr(attr: &QpInitAttr<'_>, pd: *mut ffi::ibv_pd) -> ffi::ibv_qp_init_attr_ex {
    use ffi::ibv_qp_init_attr_mask as c;
    let plain = attr.to_raw();
    // SAFETY: `ibv_qp_init_attr_ex` consists of integers and pointers, for which all zeros is a
    // valid value.
    let mut raw: ffi::ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    raw.send_cq = plain.send_cq;
    raw.recv_cq = plain.recv_cq;
    raw.srq = plain.srq;
    raw.cap = plain.cap;
    raw.qp_type = plain.qp_type;
    raw.sq_sig_all = plain.sq_sig_all;
    raw.comp_mask = (c::IBV_QP_INIT_ATTR_PD | c::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).0;
    raw.pd = pd;
    raw.send_ops_flags = flags(attr.qp_type);
    raw
}

/// Calls the function `$function` of the queue pair. If the driver has not set the function,
/// returns `None` from the enclosing function.
macro_rules! call {
    ($qp:ident.$function:ident($($arg:expr),*)) => {{
        // SAFETY: the caller of this macro guarantees that `$qp` exists.
        let function = unsafe { (*$qp).$function }?;
        // SAFETY: the driver has set this function. This module calls the functions in the order
        // that `ibv_wr_post(3)` requires, with arguments from a valid request.
        unsafe { function($qp $(, $arg)*) }
    }};
}

/// Posts a chain of requests. Either all requests are posted or none. Returns 0 or an error number.
///
/// # Safety
///
/// The queue pair `qp` exists, has the type `qp_type`, and was created with support for the
/// functions of `ibv_wr_post(3)`. The chain from `first` is complete, and the queue pair supports
/// its requests.
pub(super) unsafe fn post(
    qp: NonNull<ffi::ibv_qp_ex>,
    qp_type: QpType,
    first: *mut ffi::ibv_send_wr,
) -> libc::c_int {
    // SAFETY: the requirements of `post_all` and of this function are the same, and the caller
    // fulfils them.
    unsafe { post_all(qp.as_ptr(), qp_type, first) }.unwrap_or(libc::EOPNOTSUPP)
}

/// Posts a chain of requests as [`post`] does. Returns `None` if the driver lacks a function, or if
/// an opcode is unknown.
///
/// # Safety
///
/// The same as for [`post`].
unsafe fn post_all(
    qp: *mut ffi::ibv_qp_ex,
    qp_type: QpType,
    first: *mut ffi::ibv_send_wr,
) -> Option<libc::c_int> {
    call!(qp.wr_start());
    let mut next = first;
    // SAFETY: the caller guarantees that the chain is complete, so `next` is null or a request of
    // the chain.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the caller guarantees that `qp` and `wr` are valid, and `wr_start` was called.
        if unsafe { post_one(qp, qp_type, wr) }.is_none() {
            call!(qp.wr_abort());
            return None;
        }
        next = wr.next;
    }
    Some(call!(qp.wr_complete()))
}

/// Adds one request to the current batch. Returns `None` if the driver lacks a function, or if the
/// opcode is unknown.
///
/// # Safety
///
/// The same as for [`post`]. The caller has called `wr_start`, but has not yet called `wr_complete`
/// or `wr_abort`.
unsafe fn post_one(qp: *mut ffi::ibv_qp_ex, qp_type: QpType, wr: &ffi::ibv_send_wr) -> Option<()> {
    use ffi::ibv_wr_opcode as c;
    const INLINE: u32 = ffi::ibv_send_flags::IBV_SEND_INLINE.0;

    // SAFETY: the caller guarantees that `qp` exists. Between `wr_start` and `wr_complete`, only
    // this thread uses `qp`.
    unsafe { (*qp).wr_id = wr.wr_id };
    // The driver of software RoCE requires `IBV_SEND_INLINE` in these flags, although a separate
    // function sets inline data.
    // SAFETY: the caller guarantees that `qp` exists, and until `wr_complete` only this thread uses
    // `qp`.
    unsafe { (*qp).wr_flags = wr.send_flags };
    // SAFETY: both members of the union are `u32`, and the union is initialised.
    let imm_data_or_rkey = unsafe { wr.imm_data_invalidated_rkey_union.imm_data };
    // SAFETY: the member `rdma` consists of integers, and the union is initialised.
    let ffi::rdma_t { remote_addr, rkey } = unsafe { wr.wr.rdma };
    match wr.opcode {
        c::IBV_WR_SEND => call!(qp.wr_send()),
        c::IBV_WR_SEND_WITH_IMM => call!(qp.wr_send_imm(imm_data_or_rkey)),
        c::IBV_WR_SEND_WITH_INV => call!(qp.wr_send_inv(imm_data_or_rkey)),
        c::IBV_WR_RDMA_WRITE => call!(qp.wr_rdma_write(rkey, remote_addr)),
        c::IBV_WR_RDMA_WRITE_WITH_IMM => {
            call!(qp.wr_rdma_write_imm(rkey, remote_addr, imm_data_or_rkey));
        }
        c::IBV_WR_RDMA_READ => call!(qp.wr_rdma_read(rkey, remote_addr)),
        opcode => {
            // SAFETY: the member `atomic` consists of integers, and the union is initialised.
            let atomic = unsafe { wr.wr.atomic };
            let (rkey, addr, first) = (atomic.rkey, atomic.remote_addr, atomic.compare_add);
            match opcode {
                c::IBV_WR_ATOMIC_FETCH_AND_ADD => call!(qp.wr_atomic_fetch_add(rkey, addr, first)),
                c::IBV_WR_ATOMIC_CMP_AND_SWP => {
                    call!(qp.wr_atomic_cmp_swp(rkey, addr, first, atomic.swap));
                }
                _ => return None,
            }
        }
    }
    if qp_type == QpType::UD {
        // SAFETY: requests on datagram queue pairs use the member `ud`.
        let to = unsafe { wr.wr.ud };
        call!(qp.wr_set_ud_addr(to.ah, to.remote_qpn, to.remote_qkey));
    }
    if wr.send_flags & INLINE == 0 {
        let count = usize::try_from(wr.num_sge).ok()?;
        call!(qp.wr_set_sge_list(count, wr.sg_list));
    } else {
        // SAFETY: the caller guarantees that `sg_list` is valid. A request with the flag
        // `IBV_SEND_INLINE` has one element.
        let sge = unsafe { *wr.sg_list };
        let bytes = ptr::with_exposed_provenance_mut(sge.addr as usize);
        call!(qp.wr_set_inline_data(bytes, sge.length as usize));
    }
    Some(())
}
