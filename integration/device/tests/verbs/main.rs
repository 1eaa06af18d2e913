//! `rdmsg::verbs` against a real RDMA stack: queue pairs of one process, which the tests connect.

mod attributes;
mod datagrams;
mod events;
mod extended;
mod failures;
mod lifetimes;
mod messages;
mod one_sided;
mod pair;
mod posting;
mod shared_receives;
