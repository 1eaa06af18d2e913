use std::sync::Arc;

use super::{
    device::Device,
    device_counters::{self, DeviceCounters},
    outbound_pool::{Exposed, OutboundBuffer, OutboundPool},
    region::Region,
};
use crate::{
    remote_access::RemoteAccess,
    status::OsError,
    verbs::{AccessFlags, MemoryRegion, ProtectionDomain},
};

/// Makes the memory of one connection that the application uses, for as long as the connection has
/// a transport.
#[derive(Debug)]
pub(crate) struct Memory {
    device: Arc<Device>,
    pd: ProtectionDomain,
    outbound: Arc<OutboundPool>,
}

impl Memory {
    pub(super) fn new(device: Arc<Device>, pd: ProtectionDomain, keep: u64) -> Self {
        Self {
            device,
            pd,
            outbound: OutboundPool::new(keep),
        }
    }

    /// Allocates memory that peers may access as `access` says.
    pub(crate) fn region(&self, len: usize, access: RemoteAccess) -> Result<Region, OsError> {
        // Operations of this side write to it, too.
        let mut flags = AccessFlags::LOCAL_WRITE;
        for (given, flag) in [
            (access.read, AccessFlags::REMOTE_READ),
            (access.write, AccessFlags::REMOTE_WRITE),
            (access.atomic, AccessFlags::REMOTE_ATOMIC),
        ] {
            if given {
                flags |= flag;
            }
        }
        let memory = MemoryRegion::new(&self.pd, len, flags)?;
        Ok(Region::new(memory, access))
    }

    /// Whether operations on this connection may use the region.
    pub(super) fn made(&self, region: &Region) -> bool {
        region.memory.pd().is_same_as(&self.pd)
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Allocates a buffer for a message.
    pub(crate) fn buffer(&self, len: usize) -> Result<OutboundBuffer, OsError> {
        self.outbound.get(len)
    }

    /// Whether the buffer is one of this connection's.
    pub(crate) fn owns(&self, buffer: &OutboundBuffer) -> bool {
        buffer.is_of(&self.outbound)
    }

    /// Lets the peer read a buffer, once it is told the key. The buffer comes back with an error.
    pub(crate) fn expose(
        &self,
        buffer: OutboundBuffer,
    ) -> Result<Exposed, (OutboundBuffer, OsError)> {
        buffer.expose(&self.pd)
    }

    pub(crate) fn device_counters(&self) -> DeviceCounters {
        device_counters::read(self.device.context())
    }

    /// Gives free memory back to the system, and from now on everything else as it becomes free.
    pub(crate) fn close(&self) {
        self.outbound.close();
    }
}
