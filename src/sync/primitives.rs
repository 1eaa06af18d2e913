//! The primitives of [`Wakers`](super::Wakers). `integration/models` replaces this file, for the
//! model checker.

pub(super) use std::sync::{
    Mutex,
    atomic::{AtomicU8, AtomicU64, Ordering, fence},
};

pub(super) use crate::os::lock;
