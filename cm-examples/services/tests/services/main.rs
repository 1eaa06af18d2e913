//! Tests of the services in one process, and against programs that are killed or stopped. The tests
//! use RDMA if the environment variable `LAB_ADDR` is the address of an RDMA device, and otherwise
//! TCP.

mod axum;
mod broker;
mod codec;
mod copy;
mod ends;
mod grpc;
mod http;
mod orders;
mod resp;
mod rpc;
mod stage;
mod tls;
mod tunnel;
