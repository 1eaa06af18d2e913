//! How messages leave: in the caller's thread, copied into a slot of the ring, or lent to the peer from a buffer of their own.

use std::{
    io::IoSlice,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use super::{
    buffer::Buffer,
    core::Core,
    link::{Link, lock},
};
use crate::{
    error::{Error, TrySendError},
    proto::{Descriptor, SendRefused},
    status::OsError,
};

/// The longest message that there can be memory for.
const LONGEST: usize = isize::MAX as usize;

/// A message that is to be sent. What was prepared for it is kept from one try to the next.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    parts: &'a [IoSlice<'a>],
    len: usize,
    id: Option<u64>,
    /// The message in registered memory: the application's own buffer, or a copy that was needed because it is large.
    buffer: Option<Buffer>,
}

impl<'a> Outgoing<'a> {
    /// The bytes of `parts`, one after the other. With an `id` its completion is told.
    pub(crate) fn new(parts: &'a [IoSlice<'a>], id: Option<u64>) -> Self {
        Self {
            parts,
            len: total(parts.iter().map(|part| part.len())),
            id,
            buffer: None,
        }
    }

    /// What is in `buffer`.
    pub(crate) fn owned(buffer: Buffer, id: Option<u64>) -> Self {
        Self {
            parts: &[],
            len: buffer.len(),
            id,
            buffer: Some(buffer),
        }
    }

    /// The buffer, where the message was not sent.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        self.buffer
    }
}

/// The sum of lengths. The same bytes may be named many times, so it may be more than a number holds: then it is the greatest, which
/// is longer than any message.
fn total(lens: impl Iterator<Item = usize>) -> usize {
    lens.fold(0, usize::saturating_add)
}

impl Link {
    /// Sends a message, or says why not.
    pub(crate) fn try_send(
        self: &Arc<Self>,
        message: &mut Outgoing<'_>,
    ) -> Result<(), TrySendError> {
        if let Some(done) = self
            .with_core(|core| core.try_send(message, self))
            .transpose()
        {
            return done;
        }
        // There is room for a large message whose bytes are not in registered memory yet. Copying them takes time, so it is done
        // without the locks; the next try finds the room taken or not.
        let mut buffer = self.buffer(message.len).map_err(TrySendError::Failed)?;
        let mut to = buffer.bytes_mut();
        for part in message.parts {
            let (here, rest) = to.split_at_mut(part.len());
            here.copy_from_slice(part);
            to = rest;
        }
        message.buffer = Some(buffer);
        match self.with_core(|core| core.try_send(message, self))? {
            Some(()) => Ok(()),
            // It has its buffer, so this does not happen.
            None => Err(TrySendError::Full),
        }
    }

    /// A buffer of `len` bytes that the peer may read, once it is told of it.
    pub(crate) fn buffer(&self, len: usize) -> Result<Buffer, Error> {
        let pool = lock(&self.memory)
            .as_ref()
            .map(|memory| Arc::clone(&memory.lending));
        let pool = pool.ok_or_else(|| Error::Disconnected(self.core().reason()))?;
        let mut buffer = pool.get(len.max(1)).map_err(Error::from_os)?;
        buffer.truncate(len);
        Ok(buffer)
    }

    /// Whether a buffer is one that this connection made, and so may send.
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        lock(&self.memory)
            .as_ref()
            .is_some_and(|memory| buffer.is_of(&memory.lending))
    }
}

impl Core {
    /// Sends a message. `None` says that there is room for it, but that it has to be copied into a buffer first.
    fn try_send(
        &mut self,
        message: &mut Outgoing<'_>,
        link: &Link,
    ) -> Result<Option<()>, TrySendError> {
        self.check_not_ended()?;
        let refused = |refused| match refused {
            SendRefused::Blocked => TrySendError::Full,
            SendRefused::TooLong { limit } => TrySendError::Failed(Error::MessageTooLong {
                len: message.len,
                limit,
            }),
            SendRefused::Closed(reason) => TrySendError::Failed(Error::Disconnected(reason)),
        };
        if message.buffer.is_none() && message.id.is_none() && self.conn.is_eager(message.len) {
            // What most messages are: nothing to find out first.
            let Some(rings) = &mut self.rings else {
                return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
            };
            let transmit = self.conn.send(message.len).map_err(refused)?;
            return match rings.post_send(&transmit, message.parts, None) {
                Ok(()) => Ok(Some(())),
                Err(error) => Err(self.post_failed(error)),
            };
        }
        if message.len > LONGEST {
            // Whatever the peer takes.
            return Err(TrySendError::Failed(Error::MessageTooLong {
                len: message.len,
                limit: LONGEST as u64,
            }));
        }
        self.conn.may_send(message.len).map_err(refused)?;
        if message.id.is_some() && !self.may_tell_of_one_more(link) {
            return Err(TrySendError::Failed(Error::CompletionsNotTaken));
        }
        let eager = self.conn.is_eager(message.len);
        if !eager && message.buffer.is_none() {
            return Ok(None);
        }
        let Some(rings) = &mut self.rings else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        let posted = match message.buffer.take() {
            Some(buffer) if !eager => {
                let descriptor = Descriptor {
                    addr: buffer.addr(),
                    len: buffer.len() as u64,
                    rkey: buffer.rkey(),
                };
                let transmit = self.conn.send_large(&descriptor).map_err(refused)?;
                rings.post_large(&transmit, &descriptor, buffer, message.id)
            }
            Some(buffer) if !buffer.bytes().is_empty() => {
                let transmit = self.conn.send(message.len).map_err(refused)?;
                rings.post_send_from(&transmit, buffer, message.id)
            }
            Some(_) | None => {
                let transmit = self.conn.send(message.len).map_err(refused)?;
                rings.post_send(&transmit, message.parts, message.id)
            }
        };
        match posted {
            Ok(()) => Ok(Some(())),
            Err(error) => Err(self.post_failed(error)),
        }
    }

    /// A work request could not be posted: the connection ends.
    pub(super) fn post_failed(&mut self, error: OsError) -> TrySendError {
        self.conn.handle_post_failure(error, Instant::now());
        TrySendError::Failed(Error::Disconnected(self.reason()))
    }

    /// Whether the channel has a place for the completion of one more operation.
    pub(super) fn may_tell_of_one_more(&self, link: &Link) -> bool {
        let (Some(rings), Some(completions)) = (&self.rings, &self.completions) else {
            // The connection has ended, which is told soon enough.
            return true;
        };
        let lent = rings.books.lent.iter().filter(|lent| lent.id.is_some());
        rings.books.in_flight.ids()
            + lent.count()
            + completions.len()
            + link.aside.load(Ordering::Relaxed)
            < link.most_ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_no_number_holds_do_not_wrap_around() {
        assert_eq!(total([].into_iter()), 0);
        assert_eq!(total([1, 0, 2].into_iter()), 3);
        // 2⁶⁴ + 15 where a word has 64 bits: with wrap-around it would pass as 15.
        let quarter = usize::MAX / 4 + 1;
        let lens = [quarter, quarter, quarter, quarter, 15];
        assert_eq!(total(lens.into_iter()), usize::MAX);
        assert!(total(lens.into_iter()) > LONGEST);
    }
}
