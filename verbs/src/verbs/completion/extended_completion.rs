#![allow(unsafe_code)]

use std::{mem::MaybeUninit, ptr::NonNull};

use rdma_status::OsError;

use super::WorkCompletion;
use crate::sys::ffi;

/// A work completion with the fields that only extended queues have.
///
/// See [`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html).
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
#[doc(alias = "ibv_cq_ex")]
pub struct ExtendedCompletion {
    /// The completion.
    pub completion: WorkCompletion,
    /// The time of its arrival, in ticks of the device's clock.
    ///
    /// [`DeviceAttrEx::hca_core_clock`](crate::verbs::DeviceAttrEx::hca_core_clock) is the clock's
    /// frequency. `None` if the queue was created without timestamps.
    pub timestamp: Option<u64>,
}

/// Calls a function of the queue, if it has that function.
macro_rules! call {
    ($queue:ident.$function:ident($($arg:expr),*)) => {
        // SAFETY: the macro's caller guarantees the conditions on the queue.
        unsafe { (*$queue).$function }
            // SAFETY: the queue's own function, called in the order that `ibv_create_cq_ex(3)` asks
            // for.
            .map(|function| unsafe { function($queue $(, $arg)*) })
    };
}

/// Takes completions from a queue, oldest first, until it is empty or `completions` is full.
///
/// # Safety
///
/// The queue exists, and was created with `ibv_create_cq_ex`.
pub(super) unsafe fn poll(
    queue: NonNull<ffi::ibv_cq_ex>,
    completions: &mut [ExtendedCompletion],
) -> Result<usize, OsError> {
    let queue = queue.as_ptr();
    let mut attr = MaybeUninit::<ffi::ibv_poll_cq_attr>::zeroed();
    let mut count = 0;
    while let Some(completion) = completions.get_mut(count) {
        let ret = if count == 0 {
            call!(queue.start_poll(attr.as_mut_ptr()))
        } else {
            call!(queue.next_poll())
        };
        match ret {
            Some(0) => {}
            Some(libc::ENOENT) => break,
            // A later error is reported by the next call.
            _ if count > 0 => break,
            ret => {
                let errno = ret.unwrap_or(libc::EOPNOTSUPP);
                return Err(OsError::new("ibv_start_poll", errno));
            }
        }
        // SAFETY: the caller guarantees the conditions on the queue, which has a current
        // completion.
        *completion = unsafe { read(queue) };
        count += 1;
    }
    if count > 0 {
        // Polling was started.
        call!(queue.end_poll());
    }
    Ok(count)
}

/// Reads the current completion.
///
/// # Safety
///
/// The queue is being polled, and has a current completion.
unsafe fn read(queue: *mut ffi::ibv_cq_ex) -> ExtendedCompletion {
    // SAFETY: the caller guarantees the conditions on the queue.
    let wr_id = unsafe { (*queue).wr_id };
    // SAFETY: as above.
    let status = unsafe { (*queue).status };
    let mut completion = WorkCompletion {
        wr_id,
        status,
        vendor_err: call!(queue.read_vendor_err()).unwrap_or(0),
        qp_num: call!(queue.read_qp_num()).unwrap_or(0),
        ..WorkCompletion::default()
    };
    let mut timestamp = None;
    // If the request failed, the other fields are undefined.
    if completion.is_success() {
        completion.opcode = call!(queue.read_opcode()).unwrap_or(0);
        completion.byte_len = call!(queue.read_byte_len()).unwrap_or(0);
        // In network byte order, or a key in host byte order: as in a plain completion.
        completion.imm_data_or_rkey = call!(queue.read_imm_data()).unwrap_or(0);
        completion.src_qp = call!(queue.read_src_qp()).unwrap_or(0);
        completion.wc_flags = call!(queue.read_wc_flags()).unwrap_or(0);
        timestamp = call!(queue.read_completion_ts());
    }
    ExtendedCompletion {
        completion,
        timestamp,
    }
}
