//! Tests of in-memory connections.

mod faults;
mod needs;
mod paused;
mod threads;
