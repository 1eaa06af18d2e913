//! Children of fork(2) use their own objects, and leave inherited ones to their parent. The tests
//! run over TCP on this machine, and over RDMA in the lab, where `LAB_ADDR` is an address of a
//! device.

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
