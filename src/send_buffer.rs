use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use crate::transport::rdma::OutboundBuffer;

/// Memory to be filled and sent as one message without a copy: made by
/// [`Endpoint::buffer`](crate::Endpoint::buffer), sent by
/// [`Endpoint::send_owned`](crate::Endpoint::send_owned).
///
/// It dereferences to its bytes, which at first are anything, for instance what an earlier message
/// left. Nobody else can read them before they are sent, nor those that
/// [`truncate`](Self::truncate) cut off. Dropping it gives the memory back to the connection, which
/// keeps it for the next one within
/// [`Config::registration_cache`](crate::Config::registration_cache). It belongs to the connection
/// that made it and can be sent there only.
pub struct SendBuffer {
    pub(crate) memory: OutboundBuffer,
}

impl SendBuffer {
    /// Shortens it: only the first `len` bytes are sent. Does nothing where it is not longer than
    /// that.
    pub fn truncate(&mut self, len: usize) {
        self.memory.truncate(len);
    }
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.bytes()
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl AsRef<[u8]> for SendBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for SendBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for SendBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBuffer")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
