#[cfg(feature = "rdma")]
use crate::transport::rdma;
use crate::transport::tcp;

/// Memory that is registered with a transport: its device, and peers as far as they have the right,
/// may read or change the bytes. Clones refer to the same registration, which ends with the last.
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

    /// The address of the first byte, as peers name it.
    pub(crate) fn addr(&self) -> u64 {
        by_transport!(self, region => region.addr())
    }

    /// The key for this side's work requests.
    pub(crate) fn lkey(&self) -> u32 {
        by_transport!(self, {
            Rdma(region) => region.lkey(),
            // Its queue pairs need none.
            Tcp(_) => 0,
        })
    }

    /// The key for peers.
    pub(crate) fn rkey(&self) -> u32 {
        by_transport!(self, region => region.rkey())
    }

    /// The first byte, valid for as long as a handle exists.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        by_transport!(self, region => region.as_ptr())
    }

    /// Copies bytes in, which others may change at the same time.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        by_transport!(self, region => region.copy_in(offset, bytes))
    }

    /// Copies bytes out, which others may change at the same time.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        by_transport!(self, region => region.copy_out(offset, bytes))
    }
}
