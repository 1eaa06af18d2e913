use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use crate::transport::OutboundBuffer;

/// Memory to be filled and sent as one message without a copy.
///
/// [`Endpoint::buffer`](crate::Endpoint::buffer) makes it,
/// [`Endpoint::send_owned`](crate::Endpoint::send_owned) sends it, on the same connection only. It
/// dereferences to its bytes, whose initial content may be anything, for instance that of an
/// earlier message. A peer can read them only after they are sent, and never those that
/// [`truncate`](Self::truncate) removes. Dropping it returns the memory to the connection, which
/// keeps it for the next one within
/// [`Config::registration_cache`](crate::Config::registration_cache).
pub struct SendBuffer {
    pub(crate) memory: OutboundBuffer,
}

impl SendBuffer {
    /// Shortens the message to its first `len` bytes. Does nothing if it is not longer than that.
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
