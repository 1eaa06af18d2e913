use std::{
    fmt,
    ops::{Deref, DerefMut},
    time::Duration,
};

use crate::{
    endpoint::Endpoint,
    error::{Error, TrySendError},
    link::Deadline,
    transport::OutboundBuffer,
};

/// Memory that the program fills and sends as one message, without a copy.
///
/// Pass the buffer to [`Endpoint::send`] or one of its variants, on the connection for which the
/// buffer was created. Pass `&mut buffer` to keep the buffer for another attempt if it is not sent.
/// A buffer that was sent is empty. A message up to the eager size is copied nevertheless, into
/// memory that is already registered, because registering the buffer's memory would cost more than
/// the copy.
///
/// The buffer dereferences to its bytes. Their initial content is arbitrary, for instance that of
/// an earlier message. A peer can read the bytes only after they are sent, and can never read bytes
/// that [`truncate`](Self::truncate) has removed. Dropping the buffer returns its memory to the
/// connection. The connection caches the memory for the next buffer, up to the limit
/// [`Config::registration_cache`](crate::Config::registration_cache).
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), rdmsg::Error> {
/// let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
/// let mut buffer = rdmsg::SendBuffer::new(&endpoint, 8 << 20)?;
/// buffer.fill(7);
/// endpoint.send(buffer)?;
/// # Ok(())
/// # }
/// ```
pub struct SendBuffer {
    /// The memory of the message; `None` after the message was sent.
    memory: Option<OutboundBuffer>,
}

impl SendBuffer {
    /// Allocates memory of `len` bytes for a message on this connection.
    ///
    /// With [`Config::resume`](crate::Config::resume) this method waits without a time limit while
    /// the connection is suspended, because the memory must belong to the next connection. Tasks
    /// call [`try_new`](Self::try_new), which does not wait.
    ///
    /// # Errors
    ///
    /// * [`Error::Os`] when there is no memory.
    /// * [`Error::Disconnected`] when the connection has ended.
    pub fn new(endpoint: &Endpoint, len: usize) -> Result<Self, Error> {
        Self::until(endpoint, len, &Deadline::never())
    }

    /// Allocates memory of `len` bytes, waiting no longer than `timeout` while the connection is
    /// suspended.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when the connection has not resumed in time. Otherwise the errors of
    /// [`new`](Self::new).
    pub fn new_timeout(endpoint: &Endpoint, len: usize, timeout: Duration) -> Result<Self, Error> {
        Self::until(endpoint, len, &Deadline::after(timeout))
    }

    /// Allocates memory of `len` bytes, without waiting.
    ///
    /// # Errors
    ///
    /// * [`TrySendError::Full`] while the connection is suspended. When the connection has resumed,
    ///   room is reported as after a refused [`Endpoint::try_send`].
    /// * [`TrySendError::Failed`] with an error of [`new`](Self::new).
    pub fn try_new(endpoint: &Endpoint, len: usize) -> Result<Self, TrySendError> {
        let memory = Some(endpoint.try_outbound_buffer(len)?);
        Ok(Self { memory })
    }

    fn until(endpoint: &Endpoint, len: usize, deadline: &Deadline) -> Result<Self, Error> {
        let memory = Some(endpoint.outbound_buffer(len, deadline)?);
        Ok(Self { memory })
    }

    /// Shortens the message to its first `len` bytes. Has no effect if the message has at most
    /// `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        if let Some(memory) = &mut self.memory {
            memory.truncate(len);
        }
    }

    pub(crate) fn memory(&mut self) -> &mut Option<OutboundBuffer> {
        &mut self.memory
    }
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], OutboundBuffer::bytes)
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory
            .as_mut()
            .map_or(&mut [], OutboundBuffer::bytes_mut)
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
