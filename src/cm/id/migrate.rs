//! From one channel to another.
#![allow(unsafe_code)]

use std::cmp::Ordering;

use super::{CmId, Inner, Mode};
use crate::{
    cm::EventChannel,
    status::OsError,
    sys::{cvt, ffi},
};

impl CmId {
    /// Has the events of this id come in on another channel from now on. Those that wait on the old one come along.
    ///
    /// An id of [`new_sync`](Self::new_sync) becomes one whose steps return at once.
    ///
    /// # Errors
    ///
    /// `EBUSY` for a listener while there are events to be read on its channel: connect requests do not come along, as the kernel ties them
    /// to the old channel, and would be lost. One that arrives during the call is. Others of
    /// [`rdma_migrate_id(3)`](https://man7.org/linux/man-pages/man3/rdma_migrate_id.3.html).
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<(), OsError> {
        self.inner.migrate(channel)?;
        self.mode = Mode::Async;
        Ok(())
    }
}

impl Inner {
    pub(super) fn migrate(&self, channel: &EventChannel) -> Result<(), OsError> {
        const CALL: &str = "rdma_migrate_id";
        let mut home = self.home();
        // Outlives the locks.
        let old = home.channel.clone();
        // Nobody may read this id's events while it moves: from the old channel, nor already from the new one. Two that move in
        // opposite directions must not wait for each other.
        let _locks = match old.as_ptr().cmp(&channel.as_ptr()) {
            Ordering::Equal => return Ok(()),
            Ordering::Less => {
                let first = old.lock();
                (first, channel.lock())
            }
            Ordering::Greater => {
                let first = channel.lock();
                (first, old.lock())
            }
        };
        if home.local.listens && old.is_readable() {
            return Err(OsError::new(CALL, libc::EBUSY));
        }
        // SAFETY: id and channel exist and are locked. It waits for unacknowledged events, and there are none outside these locks.
        let ret = unsafe { ffi::rdma_migrate_id(self.raw.as_ptr(), channel.as_ptr()) };
        cvt(CALL, ret)?;
        home.channel = channel.clone();
        Ok(())
    }
}
