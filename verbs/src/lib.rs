//! Safe layers over libibverbs and librdmacm.
//!
//! * [`verbs`]: devices, memory, queues and work requests of libibverbs.
//! * [`cm`]: connections by address, of librdmacm.
//!
//! Both libraries are opened when they are first used, so that nothing but Rust is needed to build
//! a program, and a program starts where they are not installed: calls then fail with `ELIBACC`.
//! With the feature `linked` the program is linked with them instead.
//!
//! The codes that they return are in the crate `rdma-status`.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]

#[macro_use(debug, error, warn)]
extern crate rdmsg_os;

pub mod cm;
mod sys;
pub mod verbs;
