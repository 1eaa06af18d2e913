//! Runs a connection's poller through all interleavings of its threads, and through all results of
//! atomic loads that the memory orderings allow.
//!
//! The model consists of one connection, a device that completes work requests, the engine's
//! thread, and threads of an application. Only a wake-up ends a sleep. A lost wake-up therefore
//! causes a deadlock, which loom reports. Timers expire immediately, because the shortest interval
//! allows the most interleavings: the engine checks its table whenever it has no other input.

mod connection;
#[allow(missing_docs, unnameable_types, reason = "no interface")]
pub(crate) mod system;
mod waiting;
