//! The boundary to C: the bindings, what they lack, and the conversion of C results to `Result`.
//!
//! It is the only layer that knows where librdmacm and libibverbs come from: `ffi` is `linked`, the
//! crate `rdma_sys`, or with the feature `dlopen` bindings of this crate's own. Both have the same
//! names. It owns no object: descriptors, addresses and pointers belong to its callers,
//! `verbs` and `cm` for calls of libibverbs and librdmacm, and the engine for those of the system.
//! A converter never takes a failed call for a success, whatever its convention, and every function
//! that is not safe states what its caller must guarantee. It decides nothing, and never blocks
//! except in `wait_readable`, which is bounded by its caller.

#[cfg(rdma)]
pub(crate) mod consts;
mod convert;
#[cfg(any(feature = "dlopen", all(test, feature = "rdma")))]
pub(crate) mod dlopen;
#[cfg(rdma)]
mod fd;
mod fork;
#[cfg(all(feature = "rdma", any(test, not(feature = "dlopen"))))]
pub(crate) mod linked;
mod process;
#[cfg(rdma)]
pub(crate) mod sockaddr;
#[cfg(rdma)]
pub(crate) mod verbs_ext;

pub(crate) use convert::{cvt, cvt_ptr};
#[cfg(rdma)]
pub(crate) use convert::{cvt_errno, log_destroy_error};
#[cfg(feature = "dlopen")]
pub(crate) use dlopen as ffi;
#[cfg(rdma)]
pub(crate) use fd::{set_nonblocking, wait_readable};
pub(crate) use fork::{PerProcess, Process, Unshared, leak};
#[cfg(all(rdma, not(feature = "dlopen")))]
pub(crate) use linked as ffi;
pub(crate) use process::at_exit;

#[cfg(all(test, rdma))]
mod tests;
