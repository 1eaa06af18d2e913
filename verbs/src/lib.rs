//! Safe layers over libibverbs and librdmacm.
//!
//! * [`verbs`]: devices, memory, queues and work requests of libibverbs.
//! * [`cm`]: connections by address, of librdmacm.
//!
//! Both libraries are opened when they are first used, so a program builds with Rust alone, and
//! starts on machines without them: calls then fail with `ELIBACC`. With the feature `linked` the
//! program is linked with them instead.
//!
//! The codes that they return are in the crate `rdma-status`.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]

#[macro_use(debug, error, warn)]
extern crate rdmsg_os;

pub mod cm;
mod sys;
pub mod verbs;
