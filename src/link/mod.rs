//! One connection, shared by its handles and the engine's thread. A state machine makes the
//! decisions, and the connection carries them out on a transport.
//!
//! A thread of the application sends and receives messages itself, under the connection's locks
//! ([`link`]), without a switch to another thread. The engine's thread polls a connection only
//! while no thread of the application does ([`poll`](crate::poll)). To request other work from the
//! engine's thread, a connection sends a notice. The connection never waits for the engine.
//!
//! | subject | file |
//! |---|---|
//! | the locks, deferred work, the drop of the last handle, the name in log lines | `link` |
//! | the transport, installed and taken out; the owners of a connection | `attachment`; `owners` |
//! | the calls of handles; waiting, polling, event loops | `calls`; `polling` |
//! | inputs and outputs of the state machine, under its lock | `core` |
//! | sends; a message being sent; its frames | `send`; `pending_send`; `fragments` |
//! | bytes held back while the window is full | `cork` |
//! | receives: deliveries, control messages, released messages | `receive` |
//! | sessions: their state; loss and attempts; the next connection | `session`: `suspension`, … |
//! | the detection of sends that wait for a long time | `stall` |
//! | reports to the application; their order | `reports`; `sent_order` |
//! | the destination of completions; a connection's own queue | `destination`; `inbox` |
//! | the members of a group, which the group's waiting threads poll | `members` |
//! | faults, for tests | `faults` |
//! | messages and the release of their buffers and credits; unread bytes | `message`; `inflow` |
//!
//! A connection does not depend on the engine, on listeners or on other connections. Messages refer
//! to their connection only through [`MessageOwner`](message::MessageOwner).

pub(crate) mod attachment;
mod calls;
mod completion;
mod core;
mod cork;
mod deferred;
mod destination;
mod faults;
mod fragments;
mod inbox;
mod inflow;
#[expect(clippy::module_inception, reason = "it is the layer's main type")]
mod link;
mod liveness;
mod members;
mod message;
mod owners;
mod pending_send;
mod polling;
mod receive;
mod reports;
mod send;
mod sent_order;
mod session;
mod stall;

pub use self::{
    completion::{Completion, Immediate},
    message::Message,
};
pub(crate) use crate::poll::{Awaited, Deadline, Progress};

pub(crate) use self::{
    completion::Ended,
    destination::GroupQueue,
    faults::Withholding,
    inbox::{Inbox, inbox},
    inflow::Inflow,
    link::Link,
    liveness::Peers,
    message::Handoff,
    owners::Owner,
    pending_send::{Sending, total},
    session::{Next, PathsOfAttempt, PeerPath, PeerPaths, Resume, Side},
};
