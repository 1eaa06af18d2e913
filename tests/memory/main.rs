//! Connections within the process.

mod faults;
mod paused;
mod threads;
