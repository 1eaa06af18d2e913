use std::{array::TryFromSliceError, fmt};

use super::domain::Registration;
use crate::remote_access::RemoteAccess;

/// Memory that peers may access by one-sided operations, without any call by this side's program.
///
/// [`OneSided::region`](crate::OneSided::region) registers it with the rights that the peer gets,
/// for that connection only: no other peer can reach it. The peer needs the region's
/// [`remote`](Self::remote) for access; a right that it does not have cannot be used.
///
/// A peer with the right to write may change bytes at any time, so there are no references into the
/// memory: bytes are copied in and out. The two programs must agree on their accesses, for instance
/// by messages or by [`write_with_imm`](crate::OneSided::write_with_imm).
///
/// Clones are handles of the same region. It is deregistered when the last one is dropped and the
/// operations of this side that use it are done. After that an operation of the peer on it fails,
/// and ends the connection on which it was started.
#[derive(Clone)]
pub struct Region {
    pub(crate) memory: Registration,
    access: RemoteAccess,
}

impl Region {
    pub(super) fn new(memory: Registration, access: RemoteAccess) -> Self {
        Self { memory, access }
    }

    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Copies `bytes` into the region, at `offset` bytes from its beginning.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.memory.copy_in(offset, bytes);
    }

    /// Copies out of the region, from `offset` bytes after its beginning, until `bytes` is full.
    ///
    /// # Panics
    ///
    /// If the region ends before.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.memory.copy_out(offset, bytes);
    }

    /// Returns the description with which a peer accesses the region: send it in a message.
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

/// A peer's [`Region`], as described by the peer: its address, length, key and rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
    pub(crate) access: RemoteAccess,
}

impl RemoteRegion {
    /// The size in bytes of the result of [`to_bytes`](Self::to_bytes).
    pub const LEN: usize = 24;

    /// Returns the region's length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the rights that the peer gives.
    #[must_use]
    pub fn access(&self) -> RemoteAccess {
        self.access
    }

    /// Serializes the description, to send it in a message.
    ///
    /// The bytes are: address `u64`, length `u64`, rkey `u32`, rights `u32` (1 read, 2 write, 4
    /// atomic), in network byte order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[20..].copy_from_slice(&self.access.to_bits().to_be_bytes());
        bytes
    }

    /// Returns the remote region that [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// Any bytes are valid; only an operation shows whether such a region exists.
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

impl TryFrom<&[u8]> for RemoteRegion {
    type Error = TryFromSliceError;

    /// Returns the remote region that [`to_bytes`](Self::to_bytes) wrote.
    fn try_from(bytes: &[u8]) -> Result<Self, TryFromSliceError> {
        bytes.try_into().map(Self::from_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_region_round_trips() {
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
