//! Tests that a child process of fork(2) can create its own `rdmsg` objects, and does not affect
//! the objects of its parent. By default, the tests run over TCP. In the lab (`docs/lab.md`), the
//! variable `LAB_ADDR` contains the address of an RDMA device, and the tests run over RDMA.

mod children;
mod exec;
mod inherited;
mod own;
mod servers;
mod stage;
#[cfg(feature = "tokio")]
mod tasks;
