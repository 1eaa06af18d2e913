//! The boundary to C: the bindings, and additions to them.
//!
//! It is the only layer that knows where librdmacm and libibverbs come from: `ffi` is `dlopen`,
//! bindings of this crate's own, or with the feature `linked` the crate `rdma_sys`. Both have the
//! same names. It owns no object: descriptors, addresses and pointers belong to its callers,
//! `verbs` and `cm`. Every unsafe function states the guarantees that its caller must give. It
//! decides nothing, and never blocks except in `wait_readable`, which is bounded by its caller.

pub(crate) mod consts;
#[cfg(any(test, not(feature = "linked")))]
pub(crate) mod dlopen;
mod fd;
pub(crate) mod library;
#[cfg(feature = "linked")]
pub(crate) mod linked;
pub(crate) mod newer;
pub(crate) mod sockaddr;
pub(crate) mod verbs_ext;

#[cfg(not(feature = "linked"))]
pub(crate) use dlopen as ffi;
pub(crate) use fd::{set_nonblocking, wait_readable};
#[cfg(feature = "linked")]
pub(crate) use linked as ffi;
pub(crate) use rdmsg_os::{
    PerProcess, Process, Unshared, cvt, cvt_errno, cvt_ptr, failed, lock, log_destroy_error, millis,
};

#[cfg(test)]
mod tests;
