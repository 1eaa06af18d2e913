//! The boundary to C: bindings of librdmacm and libibverbs, and additions to these bindings.
//!
//! Only this module depends on how the two libraries are loaded. `ffi` is the module `dlopen`, or
//! the module `linked` if the feature `linked` is enabled. Both modules provide the same names.
//! This module owns no object: descriptors, addresses and pointers belong to its callers, `verbs`
//! and `cm`. Each unsafe function documents its requirements. Apart from the C functions, only
//! `wait_readable` blocks, at most for the timeout that its caller passes.

pub(crate) mod consts;
#[cfg(any(test, not(feature = "linked")))]
pub(crate) mod dlopen;
mod fd;
pub(crate) mod library;
#[cfg(feature = "linked")]
pub(crate) mod linked;
pub(crate) mod optional_functions;
pub(crate) mod sockaddr;
pub(crate) mod verbs_ext;

#[cfg(not(feature = "linked"))]
pub(crate) use dlopen as ffi;
pub(crate) use fd::{set_nonblocking, wait_readable};
#[cfg(feature = "linked")]
pub(crate) use linked as ffi;
pub(crate) use rdmsg_os::{
    Guard, PerProcess, Process, Unshared, cvt, cvt_errno, cvt_post, cvt_ptr, failed, lock,
    lock_hot, log_destroy_error, millis,
};

#[cfg(test)]
mod tests;
