#![allow(unsafe_code)]

use std::{mem::MaybeUninit, ptr::NonNull};

use rdma_status::OsError;

use super::WorkCompletion;
use crate::sys::ffi;

/// A work completion together with the fields that only extended queues provide.
///
/// See [`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html).
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
#[doc(alias = "ibv_cq_ex")]
pub struct ExtendedCompletion {
    /// The completion.
    pub completion: WorkCompletion,
    /// The time at which the completion arrived, in ticks of the device clock. `None` if the queue
    /// was created without timestamps, or if the work request failed.
    ///
    /// [`DeviceAttrEx::hca_core_clock`](crate::verbs::DeviceAttrEx::hca_core_clock) is the
    /// frequency of that clock in kHz.
    pub timestamp: Option<u64>,
}

/// Calls the function `$function` of the queue. The result is `None` if the driver has not set that
/// function.
macro_rules! call {
    ($queue:ident.$function:ident($($arg:expr),*)) => {
        // SAFETY: the caller of this macro guarantees that `$queue` exists.
        unsafe { (*$queue).$function }
            // SAFETY: the driver has set this function of the queue, and `poll` calls the functions
            // in the order that `ibv_create_cq_ex(3)` requires.
            .map(|function| unsafe { function($queue $(, $arg)*) })
    };
}

/// Removes completions from a queue, oldest first, until the queue is empty or `completions` is
/// full.
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
            // Return the completions that were read before the error. If the error persists, the
            // next call of this function returns it.
            _ if count > 0 => break,
            ret => {
                // A negative number is a code of the driver, not an error number.
                let errno = match ret {
                    None => libc::EOPNOTSUPP,
                    Some(errno) if errno > 0 => errno,
                    Some(_) => libc::EIO,
                };
                return Err(OsError::new("ibv_start_poll", errno));
            }
        }
        // SAFETY: the caller guarantees that `queue` exists, and `start_poll` or `next_poll` has
        // just returned a completion.
        *completion = unsafe { read(queue) };
        count += 1;
    }
    if count > 0 {
        // `start_poll` succeeded, so `end_poll` must follow.
        call!(queue.end_poll());
    }
    Ok(count)
}

/// Reads the current completion of an extended queue.
///
/// # Safety
///
/// The queue exists. The most recent call of `start_poll` or `next_poll` succeeded, and `end_poll`
/// has not been called since.
unsafe fn read(queue: *mut ffi::ibv_cq_ex) -> ExtendedCompletion {
    // SAFETY: the caller guarantees that `queue` exists.
    let wr_id = unsafe { (*queue).wr_id };
    // SAFETY: the caller guarantees that `queue` exists.
    let status = unsafe { (*queue).status };
    let mut completion = WorkCompletion {
        wr_id,
        status,
        vendor_err: call!(queue.read_vendor_err()).unwrap_or(0),
        qp_num: call!(queue.read_qp_num()).unwrap_or(0),
        ..WorkCompletion::default()
    };
    let mut timestamp = None;
    // If the work request failed, the remaining fields are undefined.
    if completion.is_success() {
        completion.opcode = call!(queue.read_opcode()).unwrap_or(0);
        completion.byte_len = call!(queue.read_byte_len()).unwrap_or(0);
        // As in `ibv_wc`, the value is either immediate data in network byte order or a key in host
        // byte order. `wc_flags` distinguishes the two.
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
