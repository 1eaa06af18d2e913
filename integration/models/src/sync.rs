//! The folder `src/sync`, as far as waiting takes it.

mod primitives {
    pub(super) use loom::sync::{
        Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering, fence},
    };

    pub(super) use crate::system::lock;
}
#[path = "../../../src/sync/wakers.rs"]
mod wakers;

pub(crate) use self::wakers::{Seat, Wakers};
pub(crate) use crate::system::{NoticeKind, Readiness};
