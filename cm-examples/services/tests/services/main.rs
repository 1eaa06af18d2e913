//! The services in one process, and against programs that are killed or stopped. Over TCP on this
//! machine, and over RDMA in the lab, where `LAB_ADDR` is an address of a device.

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
