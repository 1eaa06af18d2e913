//! The messages of rping, in the format of the C program.

use rdmsg::verbs::{MemoryRegion, RemoteAddr};

/// Returns the text of a ping, `size` bytes long: a prefix with the number of the ping, then
/// consecutive ASCII characters, and a terminating zero byte. The number determines the first of
/// these characters.
#[must_use]
pub fn text(number: u32, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{number}: ").into_bytes();
    let first = 65 + (number % 58) as u8;
    text.extend(
        (first..=122)
            .chain((65..=122).cycle())
            .take(size - 1 - text.len()),
    );
    text.push(0);
    text
}

/// A message with the address, the remote key and the length of a memory region that the peer may
/// access. A message of zeros confirms a READ or WRITE.
#[derive(Clone, Copy, Debug, Default)]
pub struct Claim {
    addr: u64,
    rkey: u32,
    size: u32,
}

impl Claim {
    /// The length of the message in bytes.
    pub const LEN: usize = 16;

    /// Creates a message for a whole memory region.
    #[must_use]
    pub fn of(memory: &MemoryRegion) -> Self {
        Self {
            addr: memory.addr(),
            rkey: memory.rkey(),
            size: memory.len() as u32,
        }
    }

    /// Returns the length of the memory in bytes.
    #[must_use]
    pub fn size(self) -> usize {
        self.size as usize
    }

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let bits =
            u128::from(self.addr) << 64 | u128::from(self.rkey) << 32 | u128::from(self.size);
        bits.to_be_bytes()
    }

    /// Decodes a message from the peer.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let bits = u128::from_be_bytes(bytes);
        Self {
            addr: (bits >> 64) as u64,
            rkey: (bits >> 32) as u32,
            size: bits as u32,
        }
    }
}

impl From<Claim> for RemoteAddr {
    fn from(claim: Claim) -> Self {
        Self {
            addr: claim.addr,
            rkey: claim.rkey,
        }
    }
}
