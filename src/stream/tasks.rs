use std::{
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use super::{Stream, read_error, write_error};

/// Waiting as a task, on any runtime.
///
/// These methods are for futures and never block. A call that returns
/// [`Pending`](Poll::Pending) has the task woken when another call may succeed. One task at a time
/// reads, and one writes. A read of another handle that waits already goes first. See
/// [`Endpoint::poll_recv`](crate::Endpoint::poll_recv).
impl Stream {
    /// Reads some bytes; none at the end.
    ///
    /// # Errors
    ///
    /// Those of [`read`](io::Read::read), except for those of a time that is over.
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let shared = &*self.shared;
        let mut reading = ready!(shared.turns.poll(cx));
        ready!(reading.poll_fill(cx, &shared.endpoint, shared.endpoint.stopped()))
            .map_err(read_error)?;
        let count = reading.read(&shared.endpoint, buf);
        reading.announce(&shared.endpoint);
        Poll::Ready(Ok(count))
    }

    /// Writes some of these bytes, and returns how many.
    ///
    /// # Errors
    ///
    /// Those of [`write`](io::Write::write), except for those of a time that is over.
    pub fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    /// Writes some of the bytes of these parts, one after the other, and returns how many.
    ///
    /// # Errors
    ///
    /// Those of [`write`](io::Write::write), except for those of a time that is over.
    pub fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let written = self.shared.endpoint.poll_write_bytes(cx, parts);
        written.map_err(write_error)
    }
}
