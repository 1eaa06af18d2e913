//! Tests `rdmsg::cm` with a real RDMA stack. Ids of this process connect to each other.

mod common;
mod connections;
mod datagrams;
mod failures;
mod lifetimes;
mod options;
mod own_queue_pair;
mod private_data;
mod requests;
mod synchronous;
mod threads;
mod waiting;
