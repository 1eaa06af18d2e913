//! Selects the synchronization primitives that [`Wakers`](super::Wakers) uses: those of the
//! standard library, or loom's in the model checker.

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
pub(super) use rdmsg_os::lock;
