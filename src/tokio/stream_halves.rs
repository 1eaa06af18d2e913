use std::{error, fmt, sync::Arc};

use super::{
    methods::{common_methods, reading_methods, writing_methods},
    reader::Reader,
    writer::Writer,
};

/// The owned reading half of a [`Stream`](super::Stream).
///
/// See [`Stream::into_split`](super::Stream::into_split).
#[derive(Debug)]
pub struct OwnedReadHalf {
    read: Reader,
}

/// The owned writing half of a [`Stream`](super::Stream).
///
/// See [`Stream::into_split`](super::Stream::into_split). Dropping the half shuts down the write
/// direction.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    write: Writer,
    finishes: bool,
}

/// The borrowed reading half of a [`Stream`](super::Stream).
///
/// See [`Stream::split`](super::Stream::split).
#[derive(Debug)]
pub struct ReadHalf<'a> {
    read: &'a mut Reader,
}

/// The borrowed writing half of a [`Stream`](super::Stream).
///
/// See [`Stream::split`](super::Stream::split). Dropping the half does not shut down the write
/// direction.
#[derive(Debug)]
pub struct WriteHalf<'a> {
    write: &'a mut Writer,
}

/// The error of [`reunite`](OwnedReadHalf::reunite) for halves of different streams.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

reading_methods!(OwnedReadHalf);
common_methods!(OwnedReadHalf, read, read);
writing_methods!(OwnedWriteHalf);
common_methods!(OwnedWriteHalf, write, write);
reading_methods!(ReadHalf<'_>);
common_methods!(ReadHalf<'_>, read, read);
writing_methods!(WriteHalf<'_>);
common_methods!(WriteHalf<'_>, write, write);

impl OwnedReadHalf {
    pub(super) fn new(read: Reader) -> Self {
        Self { read }
    }

    /// Joins the halves of one stream, and returns the stream's reading side.
    #[expect(
        clippy::result_large_err,
        reason = "the error contains both halves, as tokio's error does"
    )]
    pub(super) fn join(self, write: OwnedWriteHalf) -> Result<Reader, ReuniteError> {
        if !Arc::ptr_eq(self.read.end(), write.write.end()) {
            return Err(ReuniteError(self, write));
        }
        write.forget();
        Ok(self.read)
    }
}

impl OwnedWriteHalf {
    pub(super) fn new(write: Writer) -> Self {
        Self {
            write,
            finishes: true,
        }
    }

    /// Drops the half without shutting down the write direction.
    ///
    /// If the reading half still exists, both directions end when that half is dropped. If the
    /// reading half was dropped earlier, this call ends the stream.
    pub fn forget(mut self) {
        self.finishes = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if !self.finishes {
            return;
        }
        if let Err(error) = self.write.shut_down() {
            let name = self.write.end().name();
            debug!(
                Connection,
                "{name}: cannot shut down the write direction: {error}"
            );
        }
    }
}

impl<'a> ReadHalf<'a> {
    pub(super) fn new(read: &'a mut Reader) -> Self {
        Self { read }
    }
}

impl<'a> WriteHalf<'a> {
    pub(super) fn new(write: &'a mut Writer) -> Self {
        Self { write }
    }
}

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tried to reunite halves that are not of the same stream")
    }
}

impl error::Error for ReuniteError {}
