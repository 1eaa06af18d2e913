//! Primitives for communication between threads: a queue that wakes its reader, a file descriptor
//! that is readable while something is ready, and the wakers of tasks that wait.
//!
//! Only [`Notice`] refers to a connection, by its key.

mod mailbox;
mod primitives;
mod readiness;
mod wakers;

pub use self::{
    mailbox::{Mailbox, Notice, NoticeKind},
    readiness::{Readiness, eventfd},
    wakers::{Seat, Wakers},
};
