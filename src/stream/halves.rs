use std::{
    io::{self, BufRead, IoSlice, Read, Write},
    net::Shutdown,
};

use super::Stream;

/// The reading half of a [`Stream`], created by [`Stream::split`].
#[derive(Debug)]
pub struct ReadHalf(Stream);

/// The writing half of a [`Stream`], created by [`Stream::split`].
///
/// Dropping it shuts down the writing direction, as [`Stream::shutdown`] with [`Shutdown::Write`]
/// does.
#[derive(Debug)]
pub struct WriteHalf(Stream);

impl ReadHalf {
    pub(super) fn new(stream: Stream) -> Self {
        Self(stream)
    }

    /// Returns the stream, for methods that concern both directions.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.0
    }
}

impl WriteHalf {
    pub(super) fn new(stream: Stream) -> Self {
        Self(stream)
    }

    /// Returns the stream, for methods that concern both directions.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.0
    }
}

impl Read for ReadHalf {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl BufRead for ReadHalf {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

impl Write for WriteHalf {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // The error is ignored, because the shutdown fails only if the connection has already
        // ended.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}
