//! Tests `rdmsg::verbs` with a real RDMA stack. The tests connect queue pairs of this process.

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
mod windows;
