//! Unchecked work requests. The functions that post them are unsafe: their callers must guarantee
//! that the memory is valid.
#![allow(unsafe_code)]

use std::{fmt, mem::MaybeUninit, ptr};

use crate::{sys::ffi, verbs::SendOp};

/// A scatter/gather element that specifies its memory by address. It does not keep a memory
/// region alive.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawSge(ffi::ibv_sge);

impl fmt::Debug for RawSge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawSge")
            .field("length", &self.0.length)
            .finish_non_exhaustive()
    }
}

impl RawSge {
    /// Creates an element for the `len` bytes from `start`, which lie in a region with the key
    /// `lkey`.
    #[must_use]
    #[inline]
    pub fn new(start: *mut u8, len: u32, lkey: u32) -> Self {
        Self(ffi::ibv_sge {
            addr: start.expose_provenance() as u64,
            length: len,
            lkey,
        })
    }
}

/// A work request for the send queue. The request specifies its memory by address, and does not
/// keep memory regions alive.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::exhaustive_structs, reason = "programs fill in every field")]
pub struct RawSend<'a> {
    /// The id that the completion of the request carries.
    pub wr_id: u64,
    /// The kind of operation.
    pub op: SendOp,
    /// The local memory that the operation reads or writes.
    pub sges: &'a [RawSge],
    /// Whether the request has a completion even if it succeeds (`IBV_SEND_SIGNALED`).
    pub signalled: bool,
    /// Whether the bytes are copied into the request when it is posted (`IBV_SEND_INLINE`).
    pub inline: bool,
}

impl RawSend<'_> {
    /// Returns the request as a C structure, which points to the elements of `self`.
    #[inline(always)]
    pub(in crate::verbs) fn to_wr(self) -> ffi::ibv_send_wr {
        let wr = MaybeUninit::<ffi::ibv_send_wr>::zeroed();
        // SAFETY: `ibv_send_wr` consists of integers, raw pointers and unions of both, for which
        // all zeros is a valid value.
        let mut wr = unsafe { wr.assume_init() };
        self.write_to(&mut wr);
        wr
    }

    /// Converts the requests to a chain of C structures, and calls `post` with the chain. The C
    /// structures point to the requests' elements.
    pub(in crate::verbs) fn with_list<T>(
        requests: &[Self],
        post: impl FnOnce(*mut ffi::ibv_send_wr) -> T,
    ) -> T {
        let zeroed = || {
            // SAFETY: `ibv_send_wr` consists of integers, raw pointers and unions of both, for
            // which all zeros is a valid value.
            unsafe { MaybeUninit::<ffi::ibv_send_wr>::zeroed().assume_init() }
        };
        let mut list: Vec<_> = requests.iter().map(|_| zeroed()).collect();
        let mut next = ptr::null_mut();
        for (wr, request) in list.iter_mut().zip(requests).rev() {
            request.write_to(wr);
            wr.next = next;
            next = wr;
        }
        post(next)
    }

    #[inline(always)]
    fn write_to(&self, wr: &mut ffi::ibv_send_wr) {
        wr.wr_id = self.wr_id;
        wr.sg_list = elements(self.sges);
        wr.num_sge = self.sges.len() as i32;
        if self.signalled {
            wr.send_flags |= ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if self.inline {
            wr.send_flags |= ffi::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        self.op.encode(wr);
    }
}

/// Returns a receive as a C structure, which points to `sge`.
#[inline]
pub(in crate::verbs) fn recv_wr(wr_id: u64, sge: Option<&RawSge>) -> ffi::ibv_recv_wr {
    ffi::ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: elements(sge.map_or(&[], std::slice::from_ref)),
        num_sge: sge.is_some().into(),
    }
}

/// Returns a pointer to the elements. The C structure requires a mutable pointer, but the C
/// functions do not write to the elements.
fn elements(sges: &[RawSge]) -> *mut ffi::ibv_sge {
    sges.as_ptr().cast_mut().cast()
}
