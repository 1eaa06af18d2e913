//! Selects the synchronization primitives that [`Wakers`](super::Wakers) uses. They come from the
//! standard library, or from loom if the model checker runs.

#[cfg(loom)]
pub(super) use loom::sync::{
    Mutex,
    atomic::{AtomicU8, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex,
    atomic::{AtomicU8, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(super) use crate::sys::lock;
#[cfg(not(loom))]
pub(super) use rdmsg_os::lock_hot as lock;
