use super::Endpoint;
use crate::{
    Error, SendBuffer,
    link::{Deadline, Outgoing},
};

/// A [`SendBuffer`] that was not sent, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct NotSent {
    /// Why.
    #[source]
    pub error: Error,
    /// What was to be sent. `None` when it is not known how much of it the peer has seen: the
    /// device refused it, and the connection has ended.
    pub buffer: Option<SendBuffer>,
}

impl From<NotSent> for Error {
    fn from(not_sent: NotSent) -> Self {
        not_sent.error
    }
}

/// Sending without a copy.
impl Endpoint {
    /// Memory of `len` bytes to be filled and sent on this connection by
    /// [`send_owned`](Self::send_owned). What is in it at first may be anything.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] when there is no memory, [`Error::Disconnected`] when the connection has
    /// ended.
    pub fn buffer(&self, len: usize) -> Result<SendBuffer, Error> {
        let memory = self.inner.link.buffer(len)?;
        Ok(SendBuffer { memory })
    }

    /// Sends what is in `buffer` as one message, without a copy if it is above the eager size,
    /// waiting as [`send`](Self::send) does. A shorter one is copied into a buffer that the device
    /// knows already, which costs less than making this one known to it.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`Error::ForeignMemory`] for a buffer of another connection.
    /// The buffer comes back with the error.
    pub fn send_owned(&self, buffer: SendBuffer) -> Result<(), NotSent> {
        self.send_buffer(buffer, None)
    }

    /// As [`send_owned`](Self::send_owned), and [`Completion::Sent`](crate::Completion::Sent) with
    /// this `id` tells when the message has arrived, or
    /// [`Completion::Failed`](crate::Completion::Failed) that this is not known.
    ///
    /// # Errors
    ///
    /// As [`send_owned`](Self::send_owned), and [`Error::CompletionsNotTaken`]. After an error no
    /// completion comes.
    pub fn send_owned_with_id(&self, buffer: SendBuffer, id: u64) -> Result<(), NotSent> {
        self.send_buffer(buffer, Some(id))
    }

    fn send_buffer(&self, buffer: SendBuffer, id: Option<u64>) -> Result<(), NotSent> {
        if !self.inner.link.owns(&buffer.memory) {
            // After the end no buffer is this connection's any more, and that is what there is to
            // say.
            let error = match self.inner.link.ended() {
                Some(ended) => Error::Disconnected(ended.reason),
                None => Error::ForeignMemory,
            };
            let buffer = Some(buffer);
            return Err(NotSent { error, buffer });
        }
        let mut outgoing = Outgoing::owned(buffer.memory, id);
        self.send_until(&mut outgoing, &Deadline::never())
            .map_err(|error| NotSent {
                error,
                buffer: outgoing.into_memory().map(|memory| SendBuffer { memory }),
            })
    }
}
