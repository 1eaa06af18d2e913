//! Decides which thread polls a connection's completion queue, and implements the waits of threads,
//! tasks and event loops.
//!
//! A connection makes progress when a thread polls its queue. At any time it has one of three
//! [owners](word::Owner), which polls:
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
//! The thread that waits polls, so no other thread stands between it and the device. It acquires
//! the connection and takes the events out of the engine's epoll. An event loop or a runtime moves
//! them to its own. The engine's thread [looks](Attended) every 10 ms whether the owner has polled
//! since. It leaves a thread that sleeps in the kernel alone, because only that thread is certain
//! to wake up. A runtime is not: its threads may be busy, or outside of `block_on`.
//!
//! Some users need the engine's thread ([`Reliance`]): the receiver of a group, a task outside of a
//! runtime, a loop that waits for room. While there is one the engine stays the owner, and threads
//! that wait poll beside it.
//!
//! Of several threads that wait on one connection one *leads*: it polls, first spinning, then
//! asleep on the completion events. The others *follow*: they are parked until a thread wakes them
//! or the lead is free.
//!
//! This folder does not know connections. It gets their queues as [`Completions`].

mod attended;
mod completions;
mod deadline;
mod event_loop;
mod poll_task;
mod poller;
mod registration;
#[cfg(feature = "tokio")]
mod runtime_watch;
mod spin_record;
mod sys;
mod tasks;
mod wait;
mod word;

#[cfg(feature = "tokio")]
pub(crate) use self::runtime_watch::RuntimeWatch;
pub(crate) use self::{
    attended::{Attended, Attendee},
    completions::{Answers, Completions, Progress},
    deadline::Deadline,
    poller::Poller,
    registration::{Epolls, Registration},
    sys::Line,
    tasks::Awaited,
    wait::TimedOut,
    word::Reliance,
};
