//! What threads need to work together: a lock that outlives a panic, a queue that wakes its reader,
//! and a file descriptor that is readable while something is ready.
//!
//! Nothing here knows what a connection is, except [`Notice`], which names one by its key.

mod mailbox;
mod readiness;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use self::{
    mailbox::{Mailbox, Notice, NoticeKind},
    readiness::{Readiness, eventfd},
};

/// Takes a lock, whether or not a thread panicked while holding it. State machines apply each input
/// whole, so no half-done state is left behind that matters more than going on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
