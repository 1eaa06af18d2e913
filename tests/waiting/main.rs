//! Blocking calls, and the threads that poll for them: deadlines, runtimes that stand still or end,
//! stopped threads and processes. Over TCP on this machine, and over RDMA in the lab, where
//! `LAB_ADDR` is an address of a device.

mod crowd;
mod lateness;
mod matrix;
mod moves;
mod process;
mod runtimes;
mod spinning;
mod stage;
mod stopped;
