//! Primitives for cooperating threads: a queue that wakes its reader, a file descriptor that is
//! readable while something is ready, and the wakers of waiting tasks.
//!
//! These primitives are independent of connections, except that a [`Notice`] contains a
//! connection's key.

mod mailbox;
mod primitives;
mod readiness;
mod wakers;

pub use self::{
    mailbox::{Mailbox, Notice, NoticeKind, Reader},
    readiness::{Readiness, eventfd},
    wakers::{WaiterId, Wakers},
};
