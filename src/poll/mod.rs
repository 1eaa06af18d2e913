//! Who polls a connection's completion queue, and how threads, tasks and event loops wait.
//!
//! Polling is what moves a connection on. At any time one of three [owners](Owner) is to do it:
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
//! Whoever waits, polls: then no other thread stands between it and the device. So a thread that
//! waits acquires the connection and takes its events out of the engine's epoll, an event loop or a
//! runtime that comes by has them moved to its own. The engine's thread does not take their word
//! for it: every 10 ms it [looks](Attended) whether they have polled since. Only a thread that
//! sleeps in the kernel is left alone, because only that one is certain to wake up. A runtime is
//! not: its threads may be busy elsewhere, or nobody may call `block_on`.
//!
//! Some rely on the engine's thread, whatever else polls ([`Reliance`]): a group's receiver, a task
//! that no runtime polls for, a loop that waits for room. While there is one the engine stays the
//! owner, and threads that wait poll beside it.
//!
//! Of several threads that wait on one connection one *leads*: it polls, first spinning, then
//! asleep on the completion events. The others *follow*: they are parked until they are woken or
//! nobody leads.
//!
//! Nothing here knows what a connection is. Its queue comes as [`Completions`].

mod attended;
mod completions;
mod deadline;
mod event_loop;
mod poller;
mod registration;
#[cfg(feature = "tokio")]
mod runtime_watch;
mod spin_record;
mod sys;
mod task;
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
