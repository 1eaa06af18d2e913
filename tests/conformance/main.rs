//! Tests of the documented public API. They run over TCP on this machine, within this process, and
//! over RDMA in the lab, where `LAB_ADDR` is the address of a device.

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
