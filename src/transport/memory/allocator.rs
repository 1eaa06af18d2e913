use std::sync::Arc;

use super::{
    domain::Domain,
    exposed::Exposed,
    outbound_pool::{OutboundBuffer, OutboundPool},
    region::Region,
};
use crate::{
    remote_access::RemoteAccess,
    status::OsError,
    transport::{DeviceCounters, budget::BudgetClient},
};

/// Allocates the memory that the application uses on one connection: regions and buffers for
/// messages. A connection has an allocator while it has a transport.
#[derive(Debug)]
pub(crate) struct Allocator {
    domain: Domain,
    outbound: Arc<OutboundPool>,
}

impl Allocator {
    /// Creates an allocator that keeps at most `keep` bytes of free memory. `windows` is the budget
    /// for memory that stays registered, or `None` if the connection cannot use memory windows to
    /// expose large messages.
    pub(crate) fn new(domain: Domain, keep: u64, windows: Option<Arc<BudgetClient>>) -> Self {
        Self {
            outbound: OutboundPool::new(keep, domain.pins(), domain.numa_node(), windows),
            domain,
        }
    }

    /// Allocates memory that the peer may access with the rights in `access`. Operations of this
    /// side may write to the memory in any case. `epoch` is the connection's epoch.
    pub(crate) fn region(
        &self,
        len: usize,
        access: RemoteAccess,
        epoch: u16,
    ) -> Result<Region, OsError> {
        Ok(Region::new(
            self.domain.allocate(len, access)?,
            access,
            epoch,
        ))
    }

    /// Returns whether operations on this connection may use the region.
    pub(crate) fn has_registered(&self, region: &Region) -> bool {
        self.domain.has(&region.memory)
    }

    /// Returns the domain in which regions are registered.
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Allocates a buffer for a message.
    pub(crate) fn buffer(&self, len: usize) -> Result<OutboundBuffer, OsError> {
        self.outbound.get(len)
    }

    /// Returns whether this allocator allocated the buffer.
    pub(crate) fn owns(&self, buffer: &OutboundBuffer) -> bool {
        buffer.is_of(&self.outbound)
    }

    /// Exposes a buffer to the peer. The peer reads the buffer with the key of the result. If the
    /// result has a window, the key becomes valid when the window is bound. On failure, returns the
    /// buffer and the error.
    pub(crate) fn expose(
        &self,
        buffer: OutboundBuffer,
    ) -> Result<Exposed, (OutboundBuffer, OsError)> {
        buffer.expose(&self.domain)
    }

    pub(crate) fn device_counters(&self) -> DeviceCounters {
        self.domain.device_counters()
    }

    /// Frees unused memory now, and memory in use as soon as it is released.
    pub(crate) fn close(&self) {
        self.outbound.close();
    }
}
