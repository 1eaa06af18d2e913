//! Who waits, and who polls meanwhile: calls with a deadline, runtimes that stand still, threads
//! that are stopped. Over TCP on this machine, and over RDMA in the lab, where `LAB_ADDR` is an
//! address that a device serves.

mod moves;
mod runtimes;
mod stage;
