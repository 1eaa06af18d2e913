//! How messages leave: in the caller's thread, copied into a slot of the ring, or lent to the peer
//! from memory of their own.

use std::{
    io::IoSlice,
    mem,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use super::{
    core::Core,
    link::Link,
    send_memory::{Lent, SendMemory},
};
use crate::{
    error::{Error, TrySendError},
    proto::SendRefused,
    status::OsError,
    sync::lock,
};

/// The longest message that there can be memory for.
const LONGEST: usize = isize::MAX as usize;

/// A message that is to be sent. What was prepared for it is kept from one try to the next.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    content: Content<'a>,
    len: usize,
    id: Option<u64>,
}

#[derive(Debug)]
enum Content<'a> {
    /// The application's bytes, one part after the other.
    Parts(&'a [IoSlice<'a>]),
    /// Memory that the application filled, or a copy that was needed because the message is large.
    Memory(SendMemory),
    /// A large message that the device knows: the peer can read it as soon as it is told where it
    /// is.
    Lent(Lent),
    /// It is on its way, or it is not known how much of it the peer has seen.
    Gone,
}

impl<'a> Outgoing<'a> {
    /// The bytes of `parts`, one after the other. With an `id` its completion is told.
    pub(crate) fn new(parts: &'a [IoSlice<'a>], id: Option<u64>) -> Self {
        Self {
            content: Content::Parts(parts),
            len: total(parts.iter().map(|part| part.len())),
            id,
        }
    }

    /// What is in `memory`.
    pub(crate) fn owned(memory: SendMemory, id: Option<u64>) -> Self {
        Self {
            len: memory.len(),
            content: Content::Memory(memory),
            id,
        }
    }

    /// The memory, where the message was not sent.
    pub(crate) fn into_memory(self) -> Option<SendMemory> {
        match self.content {
            Content::Memory(memory) => Some(memory),
            Content::Lent(lent) => Some(lent.take_back()),
            Content::Parts(_) | Content::Gone => None,
        }
    }
}

/// The sum of lengths. The same bytes may be named many times, so it may be more than a number
/// holds: then it is the greatest, which is longer than any message.
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
        // There is room for a large message that the device does not know yet. Copying and
        // registering it takes time, so it is done without the locks; the next try finds the room
        // taken or not.
        self.lend(message).map_err(TrySendError::Failed)?;
        match self.with_core(|core| core.try_send(message, self))? {
            Some(()) => Ok(()),
            // The device knows it, so this does not happen.
            None => Err(TrySendError::Full),
        }
    }

    /// Makes a large message known to the device, from memory of this connection's.
    fn lend(&self, message: &mut Outgoing<'_>) -> Result<(), Error> {
        let pd = lock(&self.memory).as_ref().map(|memory| memory.pd.clone());
        let pd = pd.ok_or_else(|| Error::Disconnected(self.core().reason()))?;
        let memory = match mem::replace(&mut message.content, Content::Gone) {
            Content::Parts(parts) => {
                message.content = Content::Parts(parts);
                let mut memory = self.send_memory(message.len)?;
                let mut to = memory.bytes_mut();
                for part in parts {
                    let (here, rest) = to.split_at_mut(part.len());
                    here.copy_from_slice(part);
                    to = rest;
                }
                memory
            }
            Content::Memory(memory) => memory,
            content @ (Content::Lent(_) | Content::Gone) => {
                message.content = content;
                return Ok(());
            }
        };
        let (content, result) = match memory.lend(&pd) {
            Ok(lent) => (Content::Lent(lent), Ok(())),
            Err((memory, error)) => (Content::Memory(memory), Err(Error::from_os(error))),
        };
        message.content = content;
        result
    }

    /// Memory of `len` bytes for a message of this connection's.
    pub(crate) fn send_memory(&self, len: usize) -> Result<SendMemory, Error> {
        let pool = lock(&self.memory)
            .as_ref()
            .map(|memory| Arc::clone(&memory.sending));
        let pool = pool.ok_or_else(|| Error::Disconnected(self.core().reason()))?;
        pool.get(len).map_err(Error::from_os)
    }

    /// Whether it is memory that this connection made, and so may send.
    pub(crate) fn owns(&self, memory: &SendMemory) -> bool {
        lock(&self.memory)
            .as_ref()
            .is_some_and(|of_this| memory.is_of(&of_this.sending))
    }
}

impl Core {
    /// Sends a message. `None` says that there is room for it, but that the device has to know it
    /// first.
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
        let eager = self.conn.is_eager(message.len);
        // Most messages are eager and have no id: nothing to find out first.
        if !eager || message.id.is_some() {
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
        }
        let Some(rings) = &mut self.rings else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        let posted = match &message.content {
            Content::Parts(parts) if eager => {
                let transmit = self.conn.send(message.len).map_err(refused)?;
                rings.post_send(&transmit, parts, message.id)
            }
            Content::Memory(memory) if eager => {
                let transmit = self.conn.send(message.len).map_err(refused)?;
                rings.post_send(&transmit, &[IoSlice::new(memory.bytes())], message.id)
            }
            Content::Parts(_) | Content::Memory(_) => return Ok(None),
            Content::Lent(lent) => {
                let descriptor = lent.descriptor();
                let transmit = self.conn.send_large(&descriptor).map_err(refused)?;
                match mem::replace(&mut message.content, Content::Gone) {
                    Content::Lent(lent) => rings.post_large(&transmit, lent, message.id),
                    Content::Parts(_) | Content::Memory(_) | Content::Gone => Ok(()),
                }
            }
            Content::Gone => Ok(()),
        };
        match posted {
            Ok(()) => {
                message.content = Content::Gone;
                Ok(Some(()))
            }
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
        rings.books.ids() + completions.len() + link.aside.load(Ordering::Relaxed) < link.most_ids
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
