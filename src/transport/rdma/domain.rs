#![allow(unsafe_code)]

use std::{ops::Range, sync::Arc};

use super::device::{self, Device};
use crate::{
    config::{Config, RelaxedOrdering},
    machine::prefers_relaxed_ordering,
    proto::TransportTraits,
    remote_access::RemoteAccess,
    status::OsError,
    transport::DeviceCounters,
    verbs::{AccessFlags, MemoryRegion, MemoryWindow, ProtectionDomain},
};

/// A protection domain of a device, in which memory is registered.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    device: Arc<Device>,
    pd: ProtectionDomain,
    /// Whether memory is registered with relaxed ordering. The device may then reorder its writes
    /// to receive buffers and to the targets of READs.
    is_relaxed: bool,
}

impl Domain {
    pub(super) fn new(device: Arc<Device>, pd: ProtectionDomain, config: &Config) -> Self {
        let is_relaxed = match config.rdma.relaxed_ordering {
            RelaxedOrdering::Auto => prefers_relaxed_ordering(),
            RelaxedOrdering::On => true,
            RelaxedOrdering::Off => false,
        };
        Self {
            device,
            pd,
            is_relaxed,
        }
    }

    pub(super) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns whether memory was registered in this domain.
    pub(crate) fn has(&self, memory: &MemoryRegion) -> bool {
        memory.pd().is_same_as(&self.pd)
    }

    /// Allocates memory that this side may write to, and that peers may access with the rights in
    /// `remote`.
    pub(crate) fn allocate(
        &self,
        len: usize,
        remote: RemoteAccess,
    ) -> Result<MemoryRegion, OsError> {
        self.map(len, local_write(remote))
    }

    /// Allocates buffers for frames. The device may use relaxed ordering, because this side reads a
    /// buffer only after its receive has completed.
    pub(crate) fn allocate_buffers(&self, len: usize) -> Result<MemoryRegion, OsError> {
        let access = local_write(RemoteAccess::NONE);
        self.ordered_by_completions(access, |access| self.map(len, access))
    }

    /// Allocates memory on the NUMA node of the device.
    fn map(&self, len: usize, access: AccessFlags) -> Result<MemoryRegion, OsError> {
        MemoryRegion::on_node(&self.pd, len, access, self.numa_node())
    }

    /// Registers memory, with relaxed ordering if possible. Relaxed ordering is safe, because the
    /// caller reads the memory only after a completion. After a device has refused relaxed
    /// ordering, later calls do not request it.
    fn ordered_by_completions(
        &self,
        access: AccessFlags,
        mut register: impl FnMut(AccessFlags) -> Result<MemoryRegion, OsError>,
    ) -> Result<MemoryRegion, OsError> {
        if !self.is_relaxed || self.device.refuses_relaxed() {
            return register(access);
        }
        let (result, is_refused) = relaxed_if_possible(access, register);
        if is_refused {
            self.device.relaxed_is_refused();
        }
        result
    }

    /// Registers memory that the caller owns, as the target of RDMA READs.
    ///
    /// # Safety
    ///
    /// The conditions of [`MemoryRegion::register`] hold.
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
        // SAFETY: the caller guarantees the conditions on the memory.
        let register = |access| unsafe { MemoryRegion::register(&self.pd, start, len, access) };
        self.ordered_by_completions(access, register)
    }

    /// Registers memory that the caller owns, for peers to read.
    ///
    /// # Safety
    ///
    /// The conditions of [`MemoryRegion::register`] hold.
    pub(crate) unsafe fn expose(
        &self,
        start: *mut u8,
        len: usize,
    ) -> Result<MemoryRegion, OsError> {
        // SAFETY: the caller guarantees the conditions on the memory.
        unsafe { MemoryRegion::register(&self.pd, start, len, AccessFlags::REMOTE_READ) }
    }

    /// Registers memory that the caller owns, without access for peers. Allocates a memory window
    /// that can be bound to parts of the memory.
    ///
    /// # Safety
    ///
    /// The conditions of [`MemoryRegion::register`] hold.
    pub(crate) unsafe fn expose_by_window(
        &self,
        start: *mut u8,
        len: usize,
    ) -> Result<(MemoryRegion, MemoryWindow), OsError> {
        // SAFETY: the caller guarantees the conditions on the memory.
        let region = unsafe { MemoryRegion::register(&self.pd, start, len, AccessFlags::MW_BIND) }?;
        Ok((region, MemoryWindow::new(&self.pd)?))
    }

    /// If an RDMA READ into a part of a region needs an access flag that the region lacks,
    /// registers this part a second time, with the flag. Otherwise returns `None`. The second
    /// registration is deregistered after the READ.
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

    /// Returns whether peers could write to the targets of this side's READs. This is the case on
    /// iWARP: the response to a READ is written like any RDMA WRITE, so the target must permit
    /// writes by the peer's device.
    pub(crate) fn peers_write_read_targets(&self) -> bool {
        self.device.is_iwarp()
    }

    /// Returns the NUMA node of the device; `None` if the kernel does not know it.
    pub(crate) fn numa_node(&self) -> Option<u32> {
        self.device.numa_node()
    }

    /// Returns the maximum length of a one-sided operation in bytes.
    pub(crate) fn longest_operation(&self) -> u64 {
        self.device.max_msg_sz().into()
    }

    pub(crate) fn traits(&self) -> TransportTraits {
        TransportTraits {
            capabilities: self.device.capabilities(),
            active_speaks_first: self.device.is_iwarp(),
            reports_own_disconnect: true,
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

/// Calls `register` with relaxed ordering. If this call fails with EINVAL, calls `register` a
/// second time without relaxed ordering. The second value of the result is true if the device
/// refuses relaxed ordering.
fn relaxed_if_possible<T>(
    access: AccessFlags,
    mut register: impl FnMut(AccessFlags) -> Result<T, OsError>,
) -> (Result<T, OsError>, bool) {
    match register(access | AccessFlags::RELAXED_ORDERING) {
        Err(error) if error.errno == libc::EINVAL => {
            let result = register(access);
            let is_refused = result.is_ok();
            (result, is_refused)
        }
        result => (result, false),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers memory on a device that returns `answers` one after another. The first value of
    /// the result contains the access flags of each call.
    fn registered(answers: &[i32]) -> (Vec<AccessFlags>, Result<(), i32>, bool) {
        let mut flags = Vec::new();
        let (result, is_refused) = relaxed_if_possible(AccessFlags::LOCAL_WRITE, |access| {
            flags.push(access);
            match answers[flags.len() - 1] {
                0 => Ok(()),
                errno => Err(OsError::new("ibv_reg_mr", errno)),
            }
        });
        (flags, result.map_err(|error| error.errno), is_refused)
    }

    #[test]
    fn relaxed_ordering_is_omitted_if_refused() {
        let strict = AccessFlags::LOCAL_WRITE;
        let relaxed = strict | AccessFlags::RELAXED_ORDERING;
        assert_eq!(registered(&[0]), (vec![relaxed], Ok(()), false));
        let refused = (vec![relaxed, strict], Ok(()), true);
        assert_eq!(registered(&[libc::EINVAL, 0]), refused);
        // The device refuses the arguments even without the flag, so the flag was not the cause.
        let invalid = (vec![relaxed, strict], Err(libc::EINVAL), false);
        assert_eq!(registered(&[libc::EINVAL, libc::EINVAL]), invalid);
        let no_memory = (vec![relaxed], Err(libc::ENOMEM), false);
        assert_eq!(registered(&[libc::ENOMEM]), no_memory);
    }

    #[test]
    fn rights_of_peers_are_their_flags_and_no_other() {
        let all = local_write(RemoteAccess::WRITE);
        assert_eq!(all, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
        assert_eq!(local_write(RemoteAccess::NONE), AccessFlags::LOCAL_WRITE);
    }
}
