//! Decides which thread polls a connection's completion queue, and implements the waits of threads,
//! tasks and event loops.
//!
//! A connection makes progress when a thread polls its queue. At any time the connection has one of
//! three [owners](Owner), and the owner polls. The diagram shows how the owner changes:
//!
//! ```text
//!                       a thread waits
//!             +-------------------------------+
//!             |                               v
//!        +--------+   no poll for 10 ms   +---------+
//!        | Engine | <-------------------- | Threads |
//!        +--------+   (unless asleep)     +---------+
//!             |  ^                            |
//!   a loop or |  | events not taken for       | a loop or a runtime polls
//!   a runtime |  | 100 ms, or a user relies   |
//!   polls     |  | on the engine              |
//!             v  |                            |
//!          +------+                           |
//!          | Loop | <-------------------------+
//!          +------+
//! ```
//!
//! A thread that waits for a connection polls the connection itself, so no other thread has to wake
//! the waiting thread for each completion. The waiting thread becomes the owner and removes the
//! completion events from the engine's epoll. An event loop, a runtime or a group that becomes the
//! owner moves the events to its own epoll. Every 10 ms the engine's thread [checks](Attended)
//! whether the owner has polled since the previous check. If a loop has not handled an event, the
//! engine polls in place of the loop. If the loop has not polled after 100 ms, the engine becomes
//! the owner. The engine does not check a thread that sleeps in the kernel, because an event is
//! certain to wake that thread. An event is not certain to wake a runtime: its threads may be busy,
//! or may have left `block_on`.
//!
//! Some users need the engine's thread to poll ([`Reliance`]): the channel of a group, a task
//! outside of a runtime, an event loop that waits for room to send, and a peer in the same process.
//! While a connection has such a user, the engine stays the owner, and waiting threads poll in
//! addition. If threads wait for a group instead of using its channel, they own the members as a
//! loop does.
//!
//! If several threads wait on one connection, one of them *leads*: it spins first, and then sleeps
//! until a completion event is raised. The other threads *follow*: they are parked until another
//! thread wakes them, or until no thread leads.
//!
//! This crate is independent of the type of a connection. It accesses a connection's queue through
//! the trait [`Completions`]. The model checker loom runs the whole crate through the possible
//! interleavings of its threads: `RUSTFLAGS="--cfg loom" cargo test --package rdmsg-poll --lib
//! --release`.
//!
//! This crate is internal to `rdmsg`. Programs use `rdmsg` instead. The API of this crate may
//! change in any version.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "the only crate that uses this crate has the same version"
)]

#[macro_use(error)]
extern crate rdmsg_os;

mod completions;
mod deadline;
mod engine_checks;
mod event_loop;
mod group;
#[cfg(not(loom))]
mod group_events;
#[cfg(all(loom, test))]
mod model;
mod poller;
#[cfg(not(loom))]
mod registration;
#[cfg(all(feature = "tokio", not(loom)))]
mod runtime_watch;
mod spin;
mod sync;
#[cfg(not(loom))]
mod sys;
mod task;
#[cfg(all(feature = "tokio", not(loom)))]
mod task_events;
mod tasks;
mod wait;
mod word;

#[cfg(all(loom, test))]
use self::model::system as group_events;
#[cfg(all(loom, test))]
use self::model::system as registration;
#[cfg(all(loom, test))]
use self::model::system as sys;
#[cfg(all(feature = "tokio", not(loom)))]
pub use self::runtime_watch::RuntimeWatch;
pub use self::{
    completions::{Answers, Completions, Events, Progress},
    deadline::Deadline,
    engine_checks::{Attended, AttendedConnection, Due},
    poller::Poller,
    spin::Polling,
    sync::{Mailbox, Notice, NoticeKind, Reader, Readiness, WaiterId, Wakers, eventfd},
    sys::{Alarm, AlarmFd, Woken},
    tasks::{Awaited, Tasks},
    wait::TimedOut,
    word::{Owner, OwnerCheck, Reliance},
};
#[cfg(not(loom))]
pub use self::{
    group_events::GroupEvents,
    registration::{Epolls, FdEvents, Registration},
    sys::NoticeSender,
};
