//! Decides which thread polls a connection's completion queue, and implements the waits of threads,
//! tasks and event loops.
//!
//! A connection makes progress when a thread polls its queue. At any time it has one of three
//! [owners](Owner), which polls:
//!
//! ```text
//!                       a thread waits
//!             +-------------------------------+
//!             |                               v
//!        +--------+   no poll for 10 ms   +---------+
//!        | Engine | <-------------------- | Threads |
//!        +--------+   (unless asleep)     +---------+
//!             |  ^                            |
//!   a loop or |  | events left for 10 ms,     | a loop or a runtime comes by
//!   a runtime |  | or somebody relies on      |
//!   comes by  |  | the engine                 |
//!             v  |                            |
//!          +------+                           |
//!          | Loop | <-------------------------+
//!          +------+
//! ```
//!
//! The thread that waits polls, without a switch to another thread. It acquires the connection and
//! removes the events from the engine's epoll. An event loop or a runtime moves them to its own
//! epoll. The engine's thread [checks](Attended) every 10 ms whether the owner has polled since. It
//! does not check a thread that sleeps in the kernel, because that thread is certain to wake up. A
//! runtime is not: its threads may be busy, or outside of `block_on`.
//!
//! Some users need the engine's thread ([`Reliance`]): the receiver of a group, a task outside of a
//! runtime, a loop that waits for room. While there is such a user, the engine stays the owner, and
//! waiting threads poll as well.
//!
//! Of several threads that wait on one connection one *leads*: it polls, first spinning, then
//! asleep on the completion events. The others *follow*: they are parked until a thread wakes them
//! or the lead is free.
//!
//! This crate does not depend on connections. It gets their queues as [`Completions`]. The model
//! checker loom explores the interleavings of threads in all of it: `RUSTFLAGS="--cfg loom" cargo
//! test --package rdmsg-poll --lib --release`.
//!
//! It is no interface for programs, which use the crate `rdmsg`, and changes with each version.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros)]
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "its user is of the same version"
)]

#[macro_use(error)]
extern crate rdmsg_os;

mod attended;
mod completions;
mod deadline;
mod event_loop;
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
use self::model::system as registration;
#[cfg(all(loom, test))]
use self::model::system as sys;
#[cfg(all(feature = "tokio", not(loom)))]
pub use self::runtime_watch::RuntimeWatch;
pub use self::{
    attended::{Attended, AttendedConnection},
    completions::{Answers, Completions, Events, Progress},
    deadline::Deadline,
    poller::Poller,
    spin::Polling,
    sync::{Mailbox, Notice, NoticeKind, Readiness, Seat, Wakers, eventfd},
    sys::{Alarm, Woken},
    tasks::{Awaited, Tasks},
    wait::TimedOut,
    word::{Owner, OwnerCheck, Reliance},
};
#[cfg(not(loom))]
pub use self::{
    registration::{Epolls, FdEvents, Registration},
    sys::Line,
};
