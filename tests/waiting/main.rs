//! Tests of blocking calls, and of the threads that poll for these calls. The tests cover
//! deadlines, runtimes that end or that no thread drives, stopped threads, and stopped processes.
//! The tests run over TCP on this machine, and over RDMA in the lab, where `LAB_ADDR` is the
//! address of a device.

mod crowd;
mod lateness;
mod matrix;
mod moves;
mod process;
mod runtimes;
mod spinning;
mod stage;
mod stopped;
