//! Tests of the documented public API. By default, the tests run over TCP and over the in-memory
//! transport. In the lab (`docs/lab.md`), the variable `LAB_ADDR` contains the address of an RDMA
//! device, and the tests run over RDMA.

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
