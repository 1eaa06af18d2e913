use std::fmt;

use crate::{remote_access::RemoteAccess, verbs::MemoryRegion};

/// Memory that peers may read or write by one-sided operations, without this side's program taking
/// part.
///
/// Made by [`Endpoint::region`](crate::Endpoint::region) with the rights that the peer is to have,
/// and used on that connection alone: no other peer can reach it. What the peer needs for access is
/// the region's [`remote`](Self::remote); rights that it does not give cannot be used.
///
/// A peer that has the right may change bytes at any time, so no reference into the memory is given
/// out: bytes are copied in and out. Which are whose when is for the two programs to say, for
/// instance by a message or by [`write_with_imm`](crate::Endpoint::write_with_imm).
///
/// Clones are the same region. It is deregistered when the last one is dropped and the operations
/// of this side that use it are done; from then on a peer's operation on it fails, and ends the
/// connection on which it was made.
#[derive(Clone)]
pub struct Region {
    pub(super) memory: MemoryRegion,
    access: RemoteAccess,
}

impl Region {
    pub(super) fn new(memory: MemoryRegion, access: RemoteAccess) -> Self {
        Self { memory, access }
    }

    /// The length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Copies bytes into the region, from `offset` on.
    ///
    /// # Panics
    ///
    /// When they do not fit.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.memory.copy_in(offset, bytes);
    }

    /// Copies bytes out of the region, from `offset` on.
    ///
    /// # Panics
    ///
    /// When the region ends before.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.memory.copy_out(offset, bytes);
    }

    /// What a peer needs to access the region: send it as part of a message.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            addr: self.memory.addr(),
            len: self.memory.len() as u64,
            rkey: self.memory.rkey(),
            access: self.access,
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// A peer's [`Region`], as the peer made it known: where it is, how long, and what it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
    pub(crate) access: RemoteAccess,
}

impl RemoteRegion {
    /// The size in bytes of what [`to_bytes`](Self::to_bytes) returns.
    pub const LEN: usize = 24;

    /// The region's length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What the peer allows.
    #[must_use]
    pub fn access(&self) -> RemoteAccess {
        self.access
    }

    /// Returns the remote region as bytes to be sent: address `u64`, length `u64`, rkey `u32`,
    /// rights `u32` (1 read, 2 write, 4 atomic), in network byte order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[20..].copy_from_slice(&self.access.to_bits().to_be_bytes());
        bytes
    }

    /// Returns the remote region that [`to_bytes`](Self::to_bytes) wrote. Any bytes are valid;
    /// whether such a region exists only an operation shows.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        Self {
            addr: long(0),
            len: long(8),
            rkey: word(16),
            access: RemoteAccess::from_bits(word(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_region_comes_back_as_it_went() {
        let remote = RemoteRegion {
            addr: 0x0102_0304_0506_0708,
            len: 1 << 40,
            rkey: 0x1112_1314,
            access: RemoteAccess {
                read: true,
                atomic: true,
                ..RemoteAccess::NONE
            },
        };
        let bytes = remote.to_bytes();
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 1, 0, 0, 0, 0, 0, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 5,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(RemoteRegion::from_bytes(&bytes), remote);
    }
}
