//! Safe wrappers of libibverbs and librdmacm.
//!
//! * [`verbs`]: devices, memory, queues and work requests of libibverbs.
//! * [`cm`]: connections between socket addresses, established by librdmacm.
//!
//! Both libraries are opened at their first use. Therefore a program builds without the C
//! libraries, and starts on hosts that do not have them; calls then fail with `ELIBACC`. With the
//! feature `linked`, the program is linked with the libraries instead.
//!
//! The crate `rdma-status` defines the status codes and errors that both libraries return.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]

#[macro_use(debug, error, warn)]
extern crate rdmsg_os;

pub mod cm;
mod sys;
pub mod verbs;
