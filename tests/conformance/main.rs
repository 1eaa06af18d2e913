//! Tests of the documented public API. On this machine, the tests run over TCP and over the
//! in-memory transport. In the lab, where `LAB_ADDR` is the address of a device, they run over
//! RDMA.

mod backlog;
mod completions;
mod control;
mod ending;
mod engines;
mod events;
mod fragments;
mod groups;
mod in_memory;
mod large;
mod listening;
mod messages;
mod one_sided;
mod persist;
mod room;
mod setup;
mod shared;
mod stage;
mod streams;
