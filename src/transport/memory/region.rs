use std::{array::TryFromSliceError, fmt};

use super::domain::Registration;
use crate::remote_access::RemoteAccess;

/// Memory that the peer can access by one-sided operations, without involving this side's program.
///
/// [`OneSided::region`](crate::OneSided::region) registers the memory with certain access rights
/// for the peer of one connection. The peer needs the region's [`remote`](Self::remote) descriptor
/// for access, and cannot exceed the granted rights. Peers of other connections cannot access the
/// memory; [`Config::shared_receive`](crate::Config::shared_receive) describes an exception.
///
/// A peer with the right to write can change bytes at any time. So the memory cannot be borrowed;
/// bytes are copied in and out. The two programs must coordinate their accesses, for example by
/// messages or by [`write_with_imm`](crate::OneSided::write_with_imm).
///
/// Clones are handles to the same region. The region is deregistered after all handles have been
/// dropped and all operations of this side on the region have completed. If the peer accesses the
/// region afterwards, the peer's operation fails and the connection ends.
#[derive(Clone)]
pub struct Region {
    pub(crate) memory: Registration,
    access: RemoteAccess,
    epoch: u16,
}

impl Region {
    pub(super) fn new(memory: Registration, access: RemoteAccess, epoch: u16) -> Self {
        Self {
            memory,
            access,
            epoch,
        }
    }

    /// Returns the epoch of the connection on which the region was registered.
    pub(crate) fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Copies `bytes` into the region, at `offset` bytes from its start.
    ///
    /// # Panics
    ///
    /// Panics if `bytes` do not fit into the region at `offset`.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.memory.copy_in(offset, bytes);
    }

    /// Copies bytes out of the region, beginning `offset` bytes from its start, until `bytes` is
    /// full.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds the region.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.memory.copy_out(offset, bytes);
    }

    /// Returns the descriptor that the peer needs to access the region. Send it to the peer in a
    /// message.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            addr: self.memory.addr(),
            len: self.memory.len() as u64,
            rkey: self.memory.rkey(),
            access: self.access,
            epoch: self.epoch,
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

/// The descriptor of a peer's [`Region`]: its address, length, key and access rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
    pub(crate) access: RemoteAccess,
    /// The epoch of the connection on which the region was registered. The epoch is 0 for a
    /// connection without a session, and for the first connection of a session. For a later
    /// connection it is the low 16 bits of the number of the attempt that established the
    /// connection. Both sides number the connection attempts of a session in the same way.
    pub(crate) epoch: u16,
}

impl RemoteRegion {
    /// The size of the serialized descriptor in bytes.
    pub const LEN: usize = 24;

    /// Returns the region's length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the access rights that the peer has granted.
    #[must_use]
    pub fn access(&self) -> RemoteAccess {
        self.access
    }

    /// Serializes the descriptor, to send it in a message.
    ///
    /// The fields are, in network byte order: address `u64`, length `u64`, rkey `u32`, epoch `u16`,
    /// and access rights `u16` (1 read, 2 write, 4 atomic). The epoch is 0 for the first connection
    /// of a session. For a later connection it is the low 16 bits of the number of the attempt that
    /// established the connection.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[22..].copy_from_slice(&self.access.to_bits().to_be_bytes());
        bytes
    }

    /// Deserializes the result of [`to_bytes`](Self::to_bytes).
    ///
    /// Accepts any bytes. If the peer has no region with this descriptor, operations on the region
    /// fail.
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
            epoch: u16::from_be_bytes([bytes[20], bytes[21]]),
            access: RemoteAccess::from_bits(u16::from_be_bytes([bytes[22], bytes[23]])),
        }
    }
}

impl TryFrom<&[u8]> for RemoteRegion {
    type Error = TryFromSliceError;

    /// Deserializes the result of [`to_bytes`](RemoteRegion::to_bytes).
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
            epoch: 0x2122,
        };
        let bytes = remote.to_bytes();
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 1, 0, 0, 0, 0, 0, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0,
            5,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(RemoteRegion::from_bytes(&bytes), remote);
    }
}
