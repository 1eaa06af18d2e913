//! `rdmsg::cm` against a real RDMA stack: ids of one process, connected to each other.

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
