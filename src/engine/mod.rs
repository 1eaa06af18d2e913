//! The engine: one thread that establishes and ends connections.
//!
//! The thread handles events of the connection manager, deadlines, and the completion queues that
//! no application thread polls. No other thread calls the connection manager, except to destroy the
//! ids of ended connections ([`destroyers`]). Handles send commands to the engine's thread
//! ([`command`]), and connections send notices. The thread replies through channels, and never
//! waits for handles or connections.
//!
//! An engine without a thread ([`Threadless`](reactor::Threadless)) serves only in-memory
//! connections. The threads that submit work to such an engine run its reactor.
//!
//! This module does not depend on the handles. It returns established connections and requests,
//! from which the handles create `Endpoint`s.

mod admission;
mod command;
mod connection_entry;
mod destroyers;
#[expect(clippy::module_inception, reason = "it is the layer's main type")]
mod engine;
mod exit;
mod listening;
mod local_listeners;
mod promise;
mod reactor;
mod relief_thread;
mod timers;
mod tombstones;

pub use self::{
    command::Request,
    engine::{Engine, EngineStatistics},
    reactor::DeviceEvents,
};
pub(crate) use self::{
    command::{Bound, Command, Established, Incoming, ListenerItem, Queue, Reply, wait_for_reply},
    listening::ListenerName,
    local_listeners::{engine_of, wait_for_engine},
    promise::{Promise, PromiseSender},
    reactor::device_events,
};
