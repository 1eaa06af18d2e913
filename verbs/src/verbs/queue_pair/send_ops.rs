//! Posting with the functions of `ibv_wr_post(3)`, one for each part of a request.
#![allow(unsafe_code)]

use std::{
    mem::MaybeUninit,
    ptr::{self, NonNull},
};

use super::{QpInitAttr, QpType};
use crate::sys::ffi;

/// Returns the operations that queue pairs of this type can post with these functions.
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

/// Converts attributes to the C form that requests these functions.
pub(super) fn init_attr(attr: &QpInitAttr<'_>, pd: *mut ffi::ibv_pd) -> ffi::ibv_qp_init_attr_ex {
    use ffi::ibv_qp_init_attr_mask as c;
    let plain = attr.to_raw();
    // SAFETY: a structure of integers and pointers: all zero is a valid value.
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

/// Calls a function of the queue pair, if it has that function.
macro_rules! call {
    ($qp:ident.$function:ident($($arg:expr),*)) => {{
        // SAFETY: the macro's caller guarantees the conditions on the queue pair.
        let function = unsafe { (*$qp).$function }?;
        // SAFETY: the queue pair's own function, called in the order that `ibv_wr_post(3)`
        // requires, with arguments from the request.
        unsafe { function($qp $(, $arg)*) }
    }};
}

/// Posts a chain of requests, either all or none. Returns 0 or an error number.
///
/// # Safety
///
/// The queue pair exists, is of this type, and was created with these functions. The chain is
/// complete, and the queue pair can take its requests.
pub(super) unsafe fn post(
    qp: NonNull<ffi::ibv_qp_ex>,
    qp_type: QpType,
    first: *mut ffi::ibv_send_wr,
) -> libc::c_int {
    // SAFETY: as the caller's.
    unsafe { post_all(qp.as_ptr(), qp_type, first) }.unwrap_or(libc::EOPNOTSUPP)
}

/// Returns `None` if the queue pair lacks a function.
///
/// # Safety
///
/// As [`post`].
unsafe fn post_all(
    qp: *mut ffi::ibv_qp_ex,
    qp_type: QpType,
    first: *mut ffi::ibv_send_wr,
) -> Option<libc::c_int> {
    call!(qp.wr_start());
    let mut next = first;
    // SAFETY: the caller guarantees the conditions on the chain.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the caller guarantees the conditions on both.
        if unsafe { post_one(qp, qp_type, wr) }.is_none() {
            call!(qp.wr_abort());
            return None;
        }
        next = wr.next;
    }
    Some(call!(qp.wr_complete()))
}

/// # Safety
///
/// As [`post`], between start and completion.
unsafe fn post_one(qp: *mut ffi::ibv_qp_ex, qp_type: QpType, wr: &ffi::ibv_send_wr) -> Option<()> {
    use ffi::ibv_wr_opcode as c;
    const INLINE: u32 = ffi::ibv_send_flags::IBV_SEND_INLINE.0;

    // SAFETY: the caller guarantees the conditions on the queue pair, which this thread uses
    // exclusively until `wr_complete`.
    unsafe { (*qp).wr_id = wr.wr_id };
    // SAFETY: as above. Inline data has a function of its own, and soft-RoCE's driver requires the
    // flag as well.
    unsafe { (*qp).wr_flags = wr.send_flags };
    // SAFETY: both members are plain numbers of the same size, and the union is initialised.
    let extra = unsafe { wr.imm_data_invalidated_rkey_union.imm_data };
    // SAFETY: a member of plain numbers, and the union is initialised: as below.
    let ffi::rdma_t { remote_addr, rkey } = unsafe { wr.wr.rdma };
    match wr.opcode {
        c::IBV_WR_SEND => call!(qp.wr_send()),
        c::IBV_WR_SEND_WITH_IMM => call!(qp.wr_send_imm(extra)),
        c::IBV_WR_SEND_WITH_INV => call!(qp.wr_send_inv(extra)),
        c::IBV_WR_RDMA_WRITE => call!(qp.wr_rdma_write(rkey, remote_addr)),
        c::IBV_WR_RDMA_WRITE_WITH_IMM => call!(qp.wr_rdma_write_imm(rkey, remote_addr, extra)),
        c::IBV_WR_RDMA_READ => call!(qp.wr_rdma_read(rkey, remote_addr)),
        opcode => {
            // SAFETY: as above.
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
        // SAFETY: the member of datagrams.
        let to = unsafe { wr.wr.ud };
        call!(qp.wr_set_ud_addr(to.ah, to.remote_qpn, to.remote_qkey));
    }
    if wr.send_flags & INLINE == 0 {
        let count = usize::try_from(wr.num_sge).ok()?;
        call!(qp.wr_set_sge_list(count, wr.sg_list));
    } else {
        // SAFETY: the caller guarantees the conditions on the list. Inline data has one element.
        let sge = unsafe { *wr.sg_list };
        let bytes = ptr::with_exposed_provenance_mut(sge.addr as usize);
        call!(qp.wr_set_inline_data(bytes, sge.length as usize));
    }
    Some(())
}
