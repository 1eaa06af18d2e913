//! Runs the pollers of connections through all interleavings, and all that weak memory allows.
//!
//! The system is one connection: a device that completes work, the engine's thread, and threads of
//! an application. A sleep ends only by a wake-up, so a lost wake-up is a deadlock, which the
//! checker reports. Time passes at once: the engine looks again as soon as it can, because the
//! shortest interval allows the most interleavings.

mod connection;
#[allow(missing_docs, unnameable_types, reason = "no interface")]
pub(crate) mod system;
mod waiting;
