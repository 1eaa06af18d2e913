//! Tests of the services. Some tests run client and server in one process. Other tests start a
//! client or a server in its own process, for example to kill it with SIGKILL or to stop it with
//! SIGSTOP. If the environment variable `LAB_ADDR` is set to the address of an RDMA device, the
//! tests use RDMA. Without the variable, the tests use TCP.

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
