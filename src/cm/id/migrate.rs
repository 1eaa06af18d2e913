//! From one channel to another.

use super::{CmId, mode::Mode};
use crate::{cm::EventChannel, status::OsError};

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
