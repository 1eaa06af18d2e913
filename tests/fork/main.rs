//! Tests that a child of fork(2) can create its own objects, and does not affect the parent's
//! objects. On this machine, the tests run over TCP. In the lab, where `LAB_ADDR` is the address of
//! a device, they run over RDMA.

#[path = "../apart/mod.rs"]
mod apart;

mod children;
mod exec;
mod inherited;
mod own;
mod servers;
mod stage;
#[cfg(feature = "tokio")]
mod tasks;
