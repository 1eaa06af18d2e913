//! What [`Wakers`](super::Wakers) are made of. `integration/models` has another one, for the model
//! checker.

pub(super) use std::sync::{
    Mutex,
    atomic::{AtomicU8, AtomicU64, Ordering, fence},
};

pub(super) use super::lock::lock;
