//! What a child that was forked can do: nothing with what it inherits, which the parent goes on
//! using, and everything with what it makes. Over TCP on this machine, and over RDMA in the lab,
//! where `LAB_ADDR` is an address that a device serves.

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
