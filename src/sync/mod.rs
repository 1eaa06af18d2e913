//! Tools for threads that work together: a queue that wakes its reader, a file descriptor that is
//! readable while something is ready, the wakers of tasks that wait, and handles that a forked
//! child does not follow.
//!
//! Nothing here knows what a connection is, except [`Notice`], which names one by its key.

mod local;
mod mailbox;
mod primitives;
mod readiness;
mod wakers;

pub(crate) use self::{
    local::{Local, StandIn},
    mailbox::{Mailbox, Notice, NoticeKind},
    readiness::{Readiness, eventfd},
    wakers::{Seat, Wakers},
};
