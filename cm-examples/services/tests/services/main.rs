//! Tests of the services. Some tests run client and server in one process. Others kill or stop a
//! client or a server that runs in its own process. If the environment variable `LAB_ADDR` is set
//! to the address of an RDMA device, the tests use RDMA, and otherwise TCP.

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
