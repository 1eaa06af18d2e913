//! Tests that children of fork(2) can create their own objects, and do not affect inherited ones.
//! The tests run over TCP on this machine, and over RDMA in the lab, where `LAB_ADDR` is the
//! address of a device.

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
