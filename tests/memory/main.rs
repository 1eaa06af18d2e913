//! Tests of in-memory connections.

#[path = "../apart/mod.rs"]
mod apart;
mod faults;
mod needs;
mod paused;
mod threads;
