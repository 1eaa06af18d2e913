use std::{
    error, fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::atomic::AtomicBool,
    task::{Context, Poll, ready},
};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::turn::cooperate;
use crate::{
    Endpoint, Error,
    stream::{Reading, read_error, write_error},
};

/// Nothing but its end stops a stream of a task.
static NEVER: AtomicBool = AtomicBool::new(false);

/// The reading half of a [`Stream`](super::Stream).
///
/// See [`Stream::into_split`](super::Stream::into_split).
#[derive(Debug)]
pub struct OwnedReadHalf {
    endpoint: Endpoint,
    reading: Reading,
}

/// The writing half of a [`Stream`](super::Stream).
///
/// See [`Stream::into_split`](super::Stream::into_split). Dropping it finishes its direction, as
/// shutting it down does.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    endpoint: Endpoint,
}

/// The halves that were to be [reunited](OwnedReadHalf::reunite) are not of one stream.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl OwnedReadHalf {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            reading: Reading::default(),
        }
    }

    /// Copies bytes that are next without taking them. Waits for some as a read does.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| {
            ready!(self.poll_fill(cx))?;
            Poll::Ready(Ok(self.reading.copy_to(buf)))
        })
        .await
    }

    /// Returns the connection, for what does not wait: addresses, statistics.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { endpoint, reading } = self;
        cooperate(cx, |cx| reading.poll_fill(cx, endpoint, &NEVER)).map_err(read_error)
    }
}

impl OwnedWriteHalf {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Returns the connection, for what does not wait: addresses, statistics.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl AsyncRead for OwnedReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_fill(cx))?;
        let bytes = self.reading.bytes();
        let count = bytes.len().min(buf.remaining());
        buf.put_slice(&bytes[..count]);
        self.reading.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for OwnedReadHalf {
    /// Lends the buffer that the device wrote.
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_fill(cx))?;
        Poll::Ready(Ok(this.reading.bytes()))
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        self.reading.consume(count);
    }
}

impl AsyncWrite for OwnedWriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        cooperate(cx, |cx| self.endpoint.poll_write_bytes(cx, parts)).map_err(write_error)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: what was written is on its way, or leaves as soon as the peer has room.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Finishes the direction: the peer reads what was written before, and then the end.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.endpoint.finish() {
            // As a socket whose connection has ended.
            Ok(()) | Err(Error::Disconnected(_)) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if let Err(error) = self.endpoint.finish() {
            debug!("{:?}: {error}", self.endpoint);
        }
    }
}

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tried to reunite halves that are not of the same stream")
    }
}

impl error::Error for ReuniteError {}
