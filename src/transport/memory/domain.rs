#![allow(unsafe_code)]

use std::ops::Range;

use super::exposed::Window;
use crate::{proto::TransportTraits, remote_access::RemoteAccess, status::OsError, transport::tcp};

#[cfg(feature = "rdma")]
use crate::transport::rdma;

/// A protection domain. Memory that is registered in a domain is accessible only over connections
/// in the same domain.
#[derive(Clone, Debug)]
pub(crate) enum Domain {
    #[cfg(feature = "rdma")]
    Rdma(rdma::Domain),
    Tcp(tcp::Domain),
}

impl Domain {
    /// Returns whether `memory` is registered in this domain.
    pub(super) fn has(&self, memory: &Registration) -> bool {
        match (self, memory) {
            #[cfg(feature = "rdma")]
            (Self::Rdma(domain), Registration::Rdma(region)) => domain.has(region),
            (Self::Tcp(domain), Registration::Tcp(region)) => domain.has(region),
            #[cfg(feature = "rdma")]
            (Self::Rdma(_), Registration::Tcp(_)) | (Self::Tcp(_), Registration::Rdma(_)) => false,
        }
    }

    /// Allocates zeroed, page-aligned memory. This side may write to it, and peers may access it
    /// with the rights in `remote`.
    pub(crate) fn allocate(
        &self,
        len: usize,
        remote: RemoteAccess,
    ) -> Result<Registration, OsError> {
        by_transport!(self, {
            Rdma(domain) => Ok(Registration::Rdma(domain.allocate(len, remote)?)),
            Tcp(domain) => Ok(Registration::Tcp(domain.allocate(len, remote)?)),
        })
    }

    /// Allocates zeroed, page-aligned memory for frames. The device may write the bytes of a
    /// received frame in any order, because this side reads them only after the receive has
    /// completed.
    pub(crate) fn allocate_buffers(&self, len: usize) -> Result<Registration, OsError> {
        by_transport!(self, {
            Rdma(domain) => Ok(Registration::Rdma(domain.allocate_buffers(len)?)),
            Tcp(domain) => Ok(Registration::Tcp(domain.allocate(len, RemoteAccess::NONE)?)),
        })
    }

    /// Registers memory that the caller owns, as the target of READs.
    ///
    /// # Safety
    ///
    /// Until all handles of the result have been dropped, the `len` bytes at `start` stay mapped
    /// and initialised. While a READ writes to these bytes, no reference to them exists.
    pub(super) unsafe fn register_read_target(
        &self,
        start: *mut u8,
        len: usize,
    ) -> Result<Registration, OsError> {
        by_transport!(self, {
            Rdma(domain) => {
                // SAFETY: the caller guarantees the conditions on the memory.
                let region = unsafe { domain.register_read_target(start, len) }?;
                Ok(Registration::Rdma(region))
            },
            Tcp(domain) => {
                // SAFETY: the caller guarantees the conditions on the memory.
                let region = unsafe { domain.register(start, len, RemoteAccess::NONE) }?;
                Ok(Registration::Tcp(region))
            },
        })
    }

    /// Registers memory that the caller owns, for peers to read.
    ///
    /// # Safety
    ///
    /// Until all handles of the result have been dropped, the `len` bytes at `start` stay mapped,
    /// initialised and unchanged.
    pub(super) unsafe fn expose(
        &self,
        start: *mut u8,
        len: usize,
    ) -> Result<Registration, OsError> {
        by_transport!(self, {
            Rdma(domain) => {
                // SAFETY: the caller guarantees the conditions on the memory.
                let region = unsafe { domain.expose(start, len) }?;
                Ok(Registration::Rdma(region))
            },
            Tcp(domain) => {
                // SAFETY: the caller guarantees the conditions on the memory.
                let region = unsafe { domain.register(start, len, RemoteAccess::READ) }?;
                Ok(Registration::Tcp(region))
            },
        })
    }

    /// Registers memory that the caller owns, without access for peers, and allocates a memory
    /// window for parts of it. Returns `None` if the transport has no windows.
    ///
    /// # Safety
    ///
    /// Until all handles of the registration and the window have been dropped, the `len` bytes at
    /// `start` stay mapped and initialised. They stay unchanged while the window is bound to them.
    pub(super) unsafe fn expose_by_window(
        &self,
        start: *mut u8,
        len: usize,
    ) -> Result<Option<(Registration, Window)>, OsError> {
        by_transport!(self, {
            Rdma(domain) => {
                // SAFETY: the caller guarantees the conditions on the memory.
                let (region, window) = unsafe { domain.expose_by_window(start, len) }?;
                Ok(Some((Registration::Rdma(region), window)))
            },
            Tcp(_) => {
                let _ = (start, len);
                Ok(None)
            },
        })
    }

    /// Registers a part of a region separately, as the target of a READ. Returns `None` if the
    /// device needs no separate registration. `peer_may_write` states whether the peer has the
    /// right to write to the region.
    pub(crate) fn read_target(
        &self,
        memory: &Registration,
        part: Range<usize>,
        peer_may_write: bool,
    ) -> Result<Option<Registration>, OsError> {
        match (self, memory) {
            #[cfg(feature = "rdma")]
            (Self::Rdma(domain), Registration::Rdma(region)) => {
                let own = domain.read_target(region, part, peer_may_write)?;
                Ok(own.map(Registration::Rdma))
            }
            (_, _) => Ok(None),
        }
    }

    /// Returns true if registered memory is locked. Locked memory counts towards the process's
    /// limit on locked memory.
    pub(super) fn pins(&self) -> bool {
        by_transport!(self, {
            Rdma(_) => true,
            Tcp(_) => false,
        })
    }

    /// Returns the NUMA node on which memory is allocated; `None` if the transport prefers no node.
    pub(super) fn numa_node(&self) -> Option<u32> {
        by_transport!(self, {
            Rdma(domain) => domain.numa_node(),
            Tcp(_) => None,
        })
    }

    /// Returns true if peers can write to memory that is registered as the target of a READ. This
    /// is the case over iWARP.
    pub(super) fn peers_write_read_targets(&self) -> bool {
        by_transport!(self, {
            Rdma(domain) => domain.peers_write_read_targets(),
            Tcp(_) => false,
        })
    }

    /// Returns the maximum length of a one-sided operation in bytes.
    pub(crate) fn longest_operation(&self) -> u64 {
        by_transport!(self, {
            Rdma(domain) => domain.longest_operation(),
            Tcp(_) => u32::MAX.into(),
        })
    }

    /// Returns the device properties that the state machine needs.
    pub(crate) fn traits(&self) -> TransportTraits {
        by_transport!(self, {
            Rdma(domain) => domain.traits(),
            Tcp(_) => TransportTraits {
                reports_own_disconnect: false,
                ..TransportTraits::UNRESTRICTED
            },
        })
    }

    /// Returns the name of the device.
    pub(crate) fn device_name(&self) -> String {
        by_transport!(self, {
            Rdma(domain) => domain.device_name(),
            Tcp(_) => "TCP".to_owned(),
        })
    }

    /// Returns the counters of the device.
    pub(super) fn device_counters(&self) -> DeviceCounters {
        by_transport!(self, {
            Rdma(domain) => domain.device_counters(),
            Tcp(_) => DeviceCounters::default(),
        })
    }
}

/// Memory that is registered with a transport. The device may read or change the bytes, and so may
/// peers that have the right to do so. Clones refer to the same registration. The registration ends
/// when all clones have been dropped.
#[derive(Clone, Debug)]
pub(crate) enum Registration {
    #[cfg(feature = "rdma")]
    Rdma(rdma::MemoryRegion),
    Tcp(tcp::MemoryRegion),
}

impl Registration {
    pub(crate) fn len(&self) -> usize {
        by_transport!(self, region => region.len())
    }

    /// Returns the address of the first byte. The peer uses this address in its work requests.
    pub(crate) fn addr(&self) -> u64 {
        by_transport!(self, region => region.addr())
    }

    /// Returns the local key, for this side's work requests.
    pub(crate) fn lkey(&self) -> u32 {
        by_transport!(self, {
            Rdma(region) => region.lkey(),
            // Queue pairs over TCP need no local key.
            Tcp(_) => 0,
        })
    }

    /// Returns the remote key, for the peer's work requests.
    pub(crate) fn rkey(&self) -> u32 {
        by_transport!(self, region => region.rkey())
    }

    /// Returns a pointer to the first byte. The pointer is valid until all clones of the
    /// registration have been dropped.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        by_transport!(self, region => region.as_ptr())
    }

    /// Copies bytes into the memory, which the device or peers may change at the same time.
    ///
    /// # Panics
    ///
    /// Panics if the bytes do not fit.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        by_transport!(self, region => region.copy_in(offset, bytes))
    }

    /// Copies bytes out of the memory, which the device or peers may change at the same time.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the memory.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        by_transport!(self, region => region.copy_out(offset, bytes))
    }
}

/// Counters of a device. They cover all its connections, including those of other processes.
///
/// A counter that the driver does not support is `None`. [`DeviceCounters::of`] reads the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// The number of times that a receiver was not ready, on either side of a connection.
    ///
    /// A receiver is not ready when it has posted no receive. The library always keeps receives
    /// posted, so its own connections do not increase this counter.
    pub rnr_naks: Option<u64>,
    /// The number of retransmitted packets.
    ///
    /// A packet is retransmitted if the packet or its acknowledgement was lost or arrived too late.
    pub retransmissions: Option<u64>,
}
