//! Moving an id to another channel.

use rdma_status::OsError;

use super::{CmId, mode::Mode};
use crate::cm::EventChannel;

impl CmId {
    /// Moves the id to another channel, with the events that wait on the old one.
    ///
    /// An id of [`new_sync`](Self::new_sync) becomes one whose steps return immediately.
    ///
    /// # Errors
    ///
    /// `EBUSY` for a listener while there are unread events on its channel: connect requests are
    /// bound to the old channel by the kernel, and would be lost. One that arrives during the call
    /// is lost; otherwise those of
    /// [`rdma_migrate_id(3)`](https://man7.org/linux/man-pages/man3/rdma_migrate_id.3.html).
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<(), OsError> {
        self.inner.migrate(channel)?;
        self.mode = Mode::Async;
        Ok(())
    }
}
