use std::io::IoSlice;

use crate::send_buffer::SendBuffer;

/// The content of one message to be sent, which [`Endpoint::send`](crate::Endpoint::send) and its
/// variants take.
///
/// Most callers pass the content itself: a reference to bytes, which are copied, or a
/// [`SendBuffer`], which is not.
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
/// // Its arrival is reported as `Completion::Sent` with the id 7.
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
    /// A buffer that stays with the caller if it is not sent.
    Borrowed(&'a mut SendBuffer),
}

impl<'a> Outgoing<'a> {
    /// Makes one message of several parts, which the peer receives one after the other.
    #[must_use]
    pub fn parts(parts: &'a [IoSlice<'a>]) -> Self {
        Self::new(Content::Parts(parts))
    }

    /// Has the arrival reported as a completion with this `id`.
    ///
    /// [`Completion::Sent`](crate::Completion::Sent) comes when this message and all that were sent
    /// before it have arrived: not before the peer's library has read every large message among
    /// them. [`Completion::Failed`](crate::Completion::Failed) comes instead if the
    /// connection ends before that is known. Completions are in the order of sending. The
    /// application chooses the ids, which may be equal.
    ///
    /// A connection has places for [`Config::receive_window`](crate::Config::receive_window) +
    /// [`Config::send_depth`](crate::Config::send_depth) ids (default 48) whose operations are in
    /// flight or whose completions wait to be taken. If all are in use, `send` waits while another
    /// thread takes completions: the thread that called
    /// [`next_completion`](crate::Endpoint::next_completion) or
    /// [`completions`](crate::Endpoint::completions) last is another one, and takes some within
    /// 5 s. In the thread that takes them itself it fails with
    /// [`Error::CompletionsNotTaken`](crate::Error::CompletionsNotTaken) instead, because waiting
    /// would never end. After an error nothing was sent, and no completion comes.
    #[must_use]
    pub fn with_id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }

    fn new(content: Content<'a>) -> Self {
        Self { content, id: None }
    }

    /// Returns the same message for one more try.
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

/// Bytes, which are copied.
impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Outgoing<'a> {
    fn from(bytes: &'a T) -> Self {
        Self::new(Content::Bytes(bytes.as_ref()))
    }
}

/// Memory that is not copied, and lost if it is not sent.
impl From<SendBuffer> for Outgoing<'_> {
    fn from(buffer: SendBuffer) -> Self {
        Self::new(Content::Buffer(buffer))
    }
}

/// Memory that is not copied. It is empty after it was sent; otherwise the caller still has it.
impl<'a> From<&'a mut SendBuffer> for Outgoing<'a> {
    fn from(buffer: &'a mut SendBuffer) -> Self {
        Self::new(Content::Borrowed(buffer))
    }
}

/// Lends the message, so that the caller keeps it for another try.
impl<'a> From<&'a mut Outgoing<'_>> for Outgoing<'a> {
    fn from(message: &'a mut Outgoing<'_>) -> Self {
        message.reborrow()
    }
}
