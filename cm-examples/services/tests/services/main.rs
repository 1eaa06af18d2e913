//! The services in one process, and against programs that are killed and stopped: over TCP on this
//! machine, and over RDMA in the lab, where `LAB_ADDR` is an address that a device serves.

mod axum;
mod broker;
mod codec;
mod copy;
mod ends;
mod grpc;
mod http;
mod resp;
mod rpc;
mod stage;
mod tls;
mod tunnel;
