//! The engine: one thread that establishes and ends connections.
//!
//! The thread handles events of the connection manager, deadlines, and the completion queues that
//! no application thread polls. No other thread calls the connection manager, except to destroy the
//! ids of ended connections ([`destroyers`]). Handles send commands to the engine's thread
//! ([`command`]), and connections send notices. The thread replies through channels, and never
//! waits for handles or connections.
//!
//! An engine without a thread ([`threadless`]) serves only in-memory connections. The threads that
//! submit work to such an engine run its reactor.
//!
//! This module does not depend on the handles. It returns established connections and requests,
//! from which the handles create `Endpoint`s.

mod admission;
mod command;
mod destroyers;
mod device_event_counts;
#[expect(clippy::module_inception, reason = "it is the layer's main type")]
mod engine;
mod entry;
mod exit;
mod listening;
mod local_listeners;
mod promise;
mod reactor;
mod relief;
mod threadless;
mod timers;
mod tombstones;

pub use self::{
    command::Request,
    device_event_counts::DeviceEvents,
    engine::{Engine, EngineStatistics},
};
pub(crate) use self::{
    command::{Bound, Command, Established, Incoming, ListenerItem, Queue, Reply, wait_for_reply},
    device_event_counts::device_events,
    listening::ListenerName,
    local_listeners::{engine_of, wait_for_engine},
    promise::{Promise, PromiseSender},
};
