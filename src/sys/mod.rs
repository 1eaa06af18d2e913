//! The boundary to C: the bindings, what they lack, and the conversion of C results to `Result`.
//!
//! It is the only layer that names the `rdma_sys` crate, so that other bindings would change no
//! file but these. It owns no object: descriptors, addresses and pointers belong to its callers,
//! `verbs` and `cm` for calls of libibverbs and librdmacm, and the engine for those of the system.
//! A converter never takes a failed call for a success, whatever its convention, and every function
//! that is not safe states what its caller must guarantee. It decides nothing, and never blocks
//! except in `wait_readable`, which is bounded by its caller.

#[cfg(feature = "rdma")]
pub(crate) mod consts;
mod convert;
#[cfg(feature = "rdma")]
mod fd;
mod process;
#[cfg(feature = "rdma")]
pub(crate) mod sockaddr;
#[cfg(feature = "rdma")]
pub(crate) mod verbs_ext;

pub(crate) use convert::{cvt, cvt_ptr};
#[cfg(feature = "rdma")]
pub(crate) use convert::{cvt_errno, log_destroy_error};
#[cfg(feature = "rdma")]
pub(crate) use fd::{set_nonblocking, wait_readable};
pub(crate) use process::at_exit;
#[cfg(feature = "rdma")]
pub(crate) use rdma_sys as ffi;

#[cfg(all(test, feature = "rdma"))]
mod tests;
