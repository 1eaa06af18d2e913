//! The engine: one thread that establishes and ends connections.
//!
//! It handles the connection manager's events, deadlines, and the completion queues that no thread
//! of the application polls. Only this thread calls the connection manager. The handles above send
//! it commands ([`command`]) and connections send it notices; it answers through channels and never
//! waits for either.
//!
//! An engine without a thread ([`threadless`]) serves connections within the process: the threads
//! that give it work run the same reactor.
//!
//! It does not depend on the handles. It hands out established connections and requests, of which
//! the handles make `Endpoint`s.

mod admission;
mod command;
mod device_events;
#[expect(clippy::module_inception, reason = "it is the layer's main type")]
mod engine;
mod entry;
mod exit;
mod listening;
mod names;
mod promise;
mod reactor;
mod relief;
mod threadless;
mod timers;
mod tombstones;

pub use self::{
    command::Request,
    device_events::DeviceEvents,
    engine::{Engine, EngineStatistics},
};
pub(crate) use self::{
    command::{Bound, Command, Established, Incoming, ListenerItem, Queue, Reply, wait_for_reply},
    device_events::device_events,
    listening::ListenerName,
    names::{engine_of, wait_for_engine},
    promise::{Promise, PromiseSender},
};
