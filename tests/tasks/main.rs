//! Tests of tasks that wait. The tests use the types for tokio. On smol, a runtime for which the
//! crate has no types, they use the futures at the root of the crate. They run over TCP on this
//! machine, and over RDMA in the lab, where `LAB_ADDR` is the address of a device.

#[cfg(feature = "tokio")]
mod buffers;
mod core;
mod cut;
#[cfg(feature = "tokio")]
mod endings;
#[cfg(feature = "tokio")]
mod incoming;
#[cfg(feature = "tokio")]
mod requests;
mod stage;
#[cfg(feature = "tokio")]
mod tokio;
mod wakers;
