use std::io::IoSlice;

use crate::send_buffer::SendBuffer;

/// One message to send. It is the argument of [`Endpoint::send`](crate::Endpoint::send) and its
/// variants.
///
/// Most callers pass the content directly: a reference to bytes, which are copied, or a
/// [`SendBuffer`], which is not copied.
///
/// # Examples
///
/// ```no_run
/// use std::io::IoSlice;
///
/// use rdmsg::{Endpoint, Outgoing, SendBuffer};
///
/// # fn main() -> Result<(), rdmsg::Error> {
/// let endpoint = Endpoint::connect("10.8.0.1:7471")?;
/// endpoint.send(b"bytes")?;
/// endpoint.send(&String::from("more bytes"))?;
/// endpoint.send(SendBuffer::new(&endpoint, 1 << 20)?)?;
/// // One message of two parts.
/// endpoint.send(Outgoing::parts(&[IoSlice::new(b"head"), IoSlice::new(b"body")]))?;
/// // `Completion::Sent` with the id 7 reports the arrival of this message.
/// endpoint.send(Outgoing::from(b"important").with_id(7))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub(crate) content: Content<'a>,
    pub(crate) id: Option<u64>,
}

#[derive(Debug)]
pub(crate) enum Content<'a> {
    Bytes(&'a [u8]),
    Parts(&'a [IoSlice<'a>]),
    Buffer(SendBuffer),
    /// A buffer that the caller still owns if it is not sent.
    Borrowed(&'a mut SendBuffer),
}

impl<'a> Outgoing<'a> {
    /// Creates one message from several parts. The peer receives their concatenation.
    #[must_use]
    pub fn parts(parts: &'a [IoSlice<'a>]) -> Self {
        Self::new(Content::Parts(parts))
    }

    /// Requests a completion with this `id`, which reports the arrival of the message.
    ///
    /// [`Completion::Sent`](crate::Completion::Sent) reports that this message and all earlier
    /// messages have arrived. So this completion is reported only after the peer's library has read
    /// every large message among them. If the connection ends before that,
    /// [`Completion::Failed`](crate::Completion::Failed) reports the id instead. Completions are in
    /// the order of sending. The application chooses the ids, which need not be unique.
    ///
    /// A connection has room for [`Config::receive_window`](crate::Config::receive_window) +
    /// [`Config::send_depth`](crate::Config::send_depth) ids of messages and operations that are in
    /// flight or have unread completions (by default 48 ids over RDMA, 160 over TCP). If there is
    /// no room, `send` waits until another thread takes a completion. The thread that takes
    /// completions is the most recent caller of
    /// [`next_completion`](crate::Endpoint::next_completion) or
    /// [`completions`](crate::Endpoint::completions). If that caller is the sending thread itself,
    /// or takes no completion within 5 s, the wait might never end. In this case `send` fails with
    /// [`Error::CompletionsNotTaken`](crate::Error::CompletionsNotTaken). After an error nothing
    /// was sent, and there is no completion.
    #[must_use]
    pub fn with_id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }

    fn new(content: Content<'a>) -> Self {
        Self { content, id: None }
    }

    /// Borrows the message for one attempt to send it.
    pub(crate) fn reborrow(&mut self) -> Outgoing<'_> {
        let content = match &mut self.content {
            Content::Bytes(bytes) => Content::Bytes(bytes),
            Content::Parts(parts) => Content::Parts(parts),
            Content::Buffer(buffer) => Content::Borrowed(buffer),
            Content::Borrowed(buffer) => Content::Borrowed(buffer),
        };
        let id = self.id;
        Outgoing { content, id }
    }
}

/// Sends a copy of the bytes.
impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Outgoing<'a> {
    fn from(bytes: &'a T) -> Self {
        Self::new(Content::Bytes(bytes.as_ref()))
    }
}

/// Sends the buffer without copying it. The buffer is dropped if it is not sent.
impl From<SendBuffer> for Outgoing<'_> {
    fn from(buffer: SendBuffer) -> Self {
        Self::new(Content::Buffer(buffer))
    }
}

/// Sends the buffer without copying it. Afterwards the buffer is empty if it was sent, and keeps
/// its memory if it was not sent.
impl<'a> From<&'a mut SendBuffer> for Outgoing<'a> {
    fn from(buffer: &'a mut SendBuffer) -> Self {
        Self::new(Content::Borrowed(buffer))
    }
}

/// Borrows the message, so that the caller can send it again after a failed attempt.
impl<'a> From<&'a mut Outgoing<'_>> for Outgoing<'a> {
    fn from(message: &'a mut Outgoing<'_>) -> Self {
        message.reborrow()
    }
}
