//! The boundary to C: bindings, constants the bindings lack, and the one place where a C result becomes a `Result`.
//!
//! No other module names the `rdma_sys` crate.

pub(crate) mod consts;
mod convert;
mod fd;
mod process;
pub(crate) mod sockaddr;
pub(crate) mod verbs_ext;

pub(crate) use convert::{cvt, cvt_errno, cvt_ptr, log_destroy_error};
pub(crate) use fd::{set_nonblocking, wait_readable};
pub(crate) use process::at_exit;
pub(crate) use rdma_sys as ffi;

#[cfg(test)]
mod tests;
