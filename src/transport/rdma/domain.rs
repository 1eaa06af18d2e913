#![allow(unsafe_code)]

use std::{ops::Range, sync::Arc};

use super::device::{self, Device};
use crate::{
    proto::TransportTraits,
    remote_access::RemoteAccess,
    status::OsError,
    transport::DeviceCounters,
    verbs::{AccessFlags, MemoryRegion, ProtectionDomain},
};

/// A protection domain of a device, in which memory is registered.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    device: Arc<Device>,
    pd: ProtectionDomain,
}

impl Domain {
    pub(super) fn new(device: Arc<Device>, pd: ProtectionDomain) -> Self {
        Self { device, pd }
    }

    pub(super) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Whether memory was registered here.
    pub(crate) fn has(&self, memory: &MemoryRegion) -> bool {
        memory.pd().is_same_as(&self.pd)
    }

    /// Allocates memory that this side may write, and peers may access as `remote` says.
    pub(crate) fn allocate(
        &self,
        len: usize,
        remote: RemoteAccess,
    ) -> Result<MemoryRegion, OsError> {
        MemoryRegion::new(&self.pd, len, local_write(remote))
    }

    /// Registers memory that the caller owns, for the peers' answers to reads.
    ///
    /// # Safety
    ///
    /// [`MemoryRegion::register`].
    pub(crate) unsafe fn register_read_target(
        &self,
        start: *mut u8,
        len: usize,
    ) -> Result<MemoryRegion, OsError> {
        let remote = RemoteAccess {
            write: self.peers_write_read_targets(),
            ..RemoteAccess::NONE
        };
        let access = local_write(remote);
        // SAFETY: the caller vouches for the memory.
        unsafe { MemoryRegion::register(&self.pd, start, len, access) }
    }

    /// Registers memory that the caller owns, for peers to read.
    ///
    /// # Safety
    ///
    /// [`MemoryRegion::register`].
    pub(crate) unsafe fn expose(
        &self,
        start: *mut u8,
        len: usize,
    ) -> Result<MemoryRegion, OsError> {
        // SAFETY: the caller vouches for the memory.
        unsafe { MemoryRegion::register(&self.pd, start, len, AccessFlags::REMOTE_READ) }
    }

    /// Registers a part of a region again for the answer to a read, if that needs a right which the
    /// region does not give. The registration has that right, and ends with the read.
    pub(crate) fn read_target(
        &self,
        memory: &MemoryRegion,
        part: Range<usize>,
        peer_may_write: bool,
    ) -> Result<Option<MemoryRegion>, OsError> {
        if !self.peers_write_read_targets() || peer_may_write || part.is_empty() {
            return Ok(None);
        }
        memory
            .again(part, local_write(RemoteAccess::WRITE))
            .map(Some)
    }

    /// Whether peers may write to the memory into which this side reads. On iWARP the peer's answer
    /// to a read is a write like any other, so the peer's device must be allowed to write there.
    pub(crate) fn peers_write_read_targets(&self) -> bool {
        self.device.is_iwarp()
    }

    /// The longest one-sided operation in bytes.
    pub(crate) fn longest_operation(&self) -> u64 {
        self.device.max_msg_sz().into()
    }

    pub(crate) fn traits(&self) -> TransportTraits {
        TransportTraits {
            capabilities: self.device.capabilities(),
            active_speaks_first: self.device.is_iwarp(),
            acknowledges_sends: !self.device.is_iwarp(),
            flushes: !self.device.is_iwarp(),
        }
    }

    pub(crate) fn device_name(&self) -> String {
        self.device.context().device_name()
    }

    pub(crate) fn device_counters(&self) -> DeviceCounters {
        device::read_counters(self.device.context())
    }
}

fn local_write(remote: RemoteAccess) -> AccessFlags {
    let mut flags = AccessFlags::LOCAL_WRITE;
    for (given, flag) in [
        (remote.read, AccessFlags::REMOTE_READ),
        (remote.write, AccessFlags::REMOTE_WRITE),
        (remote.atomic, AccessFlags::REMOTE_ATOMIC),
    ] {
        if given {
            flags |= flag;
        }
    }
    flags
}
