//! Checks the pollers of connections in all interleavings of threads that the memory model permits.
//!
//! The system is one connection: a device that completes work, the engine's thread, and threads of
//! an application. A sleep ends only by a wake-up, so a lost wake-up is a deadlock, which the
//! checker reports. Timers expire at once: the engine checks again as soon as possible, because the
//! shortest interval permits the most interleavings.

mod connection;
#[allow(missing_docs, unnameable_types, reason = "no interface")]
pub(crate) mod system;
mod waiting;
