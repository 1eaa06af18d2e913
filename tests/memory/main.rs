//! Tests of connections within the process.

#[path = "../apart/mod.rs"]
mod apart;
mod faults;
mod needs;
mod paused;
mod threads;
