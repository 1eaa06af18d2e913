//! What threads need to work together: a lock that outlives a panic, a queue that wakes its reader,
//! and a file descriptor that is readable while something is ready.
//!
//! Nothing here knows what a connection is, except [`Notice`], which names one by its key.

mod eventfd;
mod lock;
mod mailbox;
mod readiness;

pub(crate) use self::{
    eventfd::eventfd,
    lock::lock,
    mailbox::{Mailbox, Notice, NoticeKind},
    readiness::Readiness,
};
