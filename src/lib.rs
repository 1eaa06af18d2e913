//! Connection-managed messaging over RDMA.
#![deny(unsafe_code)]

pub mod status;
