use std::{io, time::Duration};

use super::Endpoint;
use crate::{
    error::Error,
    link::{Deadline, Outgoing},
    send_buffer::SendBuffer,
};

/// The error of sending a [`SendBuffer`], with the buffer.
///
/// It converts into the [`Error`], so `?` works where the buffer is not needed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct NotSent {
    /// The reason.
    #[source]
    pub error: Error,
    /// The buffer that was not sent.
    ///
    /// `None` if it is not known how much of it the peer has read: the device refused it, and the
    /// connection has ended.
    pub buffer: Option<SendBuffer>,
}

impl From<NotSent> for Error {
    fn from(not_sent: NotSent) -> Self {
        not_sent.error
    }
}

impl From<NotSent> for io::Error {
    fn from(not_sent: NotSent) -> Self {
        not_sent.error.into()
    }
}

/// Sending without a copy.
impl Endpoint {
    /// Allocates memory of `len` bytes to be filled and sent by [`send_owned`](Self::send_owned).
    ///
    /// It can be sent on this connection only. Its initial content may be anything.
    ///
    /// # Errors
    ///
    /// * [`Error::Os`] when there is no memory.
    /// * [`Error::Disconnected`] when the connection has ended.
    pub fn buffer(&self, len: usize) -> Result<SendBuffer, Error> {
        let memory = self.inner.link.buffer(len)?;
        Ok(SendBuffer { memory })
    }

    /// Sends the content of `buffer` as one message, without a copy if it is above the eager size.
    ///
    /// It waits while the peer's window is full, or while 4 messages above the eager size or
    /// [`Config::large_memory`](crate::Config::large_memory) bytes of them are in flight. A message
    /// up to the eager size is copied into a buffer that is registered already, which costs less
    /// than registering this one.
    ///
    /// # Errors
    ///
    /// [`NotSent`], which returns the buffer, with one of these:
    ///
    /// * [`Error::ForeignMemory`] for a buffer of another connection.
    /// * [`Error::MessageTooLong`] above [`send_limit`](Self::send_limit). The connection goes on.
    /// * [`Error::Disconnected`] when the connection has ended.
    /// * [`Error::LockedMemory`] when the memory cannot be locked. The connection goes on.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// # let endpoint = rdmsg::Endpoint::connect("10.8.0.1:7471")?;
    /// let mut buffer = endpoint.buffer(8 << 20)?;
    /// buffer.fill(7);
    /// endpoint.send_owned(buffer)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_owned(&self, buffer: SendBuffer) -> Result<(), NotSent> {
        self.send_buffer(buffer, None, |message| self.send_outgoing(message))
    }

    /// Sends the content of `buffer` and reports its arrival as a completion with this `id`.
    ///
    /// It waits while the peer's window is full. A message above the eager size is not copied.
    /// [`Completion::Sent`](crate::Completion::Sent) with the id comes when this message and all
    /// that were sent before it have arrived, or [`Completion::Failed`](crate::Completion::Failed)
    /// if the connection ends before that is known.
    ///
    /// # Errors
    ///
    /// [`NotSent`], which returns the buffer, with one of these. After an error no completion
    /// comes.
    ///
    /// * [`Error::CompletionsNotTaken`] when too many completions wait to be taken, and no other
    ///   thread takes them.
    /// * [`Error::ForeignMemory`] for a buffer of another connection.
    /// * [`Error::MessageTooLong`] above [`send_limit`](Self::send_limit). The connection goes on.
    /// * [`Error::Disconnected`] when the connection has ended.
    /// * [`Error::LockedMemory`] when the memory cannot be locked. The connection goes on.
    pub fn send_owned_with_id(&self, buffer: SendBuffer, id: u64) -> Result<(), NotSent> {
        self.send_buffer(buffer, Some(id), |message| self.send_outgoing(message))
    }

    /// Sends the content of `buffer` as one message, waiting no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// Those of [`send_owned`](Self::send_owned), and [`Error::TimedOut`] when there was no room.
    pub fn send_owned_timeout(&self, buffer: SendBuffer, timeout: Duration) -> Result<(), NotSent> {
        self.send_buffer(buffer, None, |message| {
            self.send_until(message, &Deadline::after(timeout))
        })
    }

    /// Sends the content of `buffer` as one message if there is room, and never waits.
    ///
    /// # Errors
    ///
    /// Those of [`send_owned`](Self::send_owned), and [`Error::WindowFull`] when there is no room
    /// now.
    pub fn try_send_owned(&self, buffer: SendBuffer) -> Result<(), NotSent> {
        self.send_buffer(buffer, None, |message| {
            self.try_send_outgoing(message).map_err(Error::from)
        })
    }

    pub(super) fn send_buffer(
        &self,
        buffer: SendBuffer,
        id: Option<u64>,
        send: impl FnOnce(&mut Outgoing<'_>) -> Result<(), Error>,
    ) -> Result<(), NotSent> {
        if !self.inner.link.owns(&buffer.memory) {
            // After the end no buffer belongs to this connection any more: the end is the cause.
            let error = match self.inner.link.ended() {
                Some(ended) => Error::Disconnected(ended.reason),
                None => Error::ForeignMemory,
            };
            let buffer = Some(buffer);
            return Err(NotSent { error, buffer });
        }
        let mut outgoing = Outgoing::owned(buffer.memory, id);
        send(&mut outgoing).map_err(|error| NotSent {
            error,
            buffer: outgoing.into_memory().map(|memory| SendBuffer { memory }),
        })
    }
}
