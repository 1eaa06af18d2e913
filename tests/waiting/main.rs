//! Tests of blocking calls, and of the threads that poll for these calls. The tests cover
//! deadlines, dropped runtimes, runtimes that no thread drives, stopped threads, and stopped
//! processes. On this machine, the tests run over TCP. In the lab, where `LAB_ADDR` is the address
//! of a device, they run over RDMA.

mod crowd;
mod lateness;
mod matrix;
mod moves;
mod process;
mod runtimes;
mod spinning;
mod stage;
mod stopped;
