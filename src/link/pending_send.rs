//! A message while it is being sent. It is either copied into a send buffer, or exposed in memory
//! that the peer reads.

use std::{io::IoSlice, mem};

use crate::{
    error::Error,
    transport::{Allocator, Exposed, OutboundBuffer},
};

/// The maximum length in bytes of an object in memory.
pub(super) const LONGEST: usize = isize::MAX as usize;

/// A message to send. If the message is refused, this value keeps the copy or the registered memory
/// for the next attempt.
#[derive(Debug)]
pub(crate) struct Sending<'a> {
    pub(super) content: Content<'a>,
    pub(super) len: usize,
    pub(super) id: Option<u64>,
    /// The generation of the connection over which the message is exposed.
    pub(super) generation: u32,
}

#[derive(Debug)]
pub(super) enum Content<'a> {
    /// The application's bytes, in consecutive parts.
    Parts(&'a [IoSlice<'a>]),
    /// Memory that the application has filled, or a copy of a large message.
    Memory(OutboundBuffer),
    /// A large message in memory that the peer can read after the announcement.
    Exposed(Exposed),
    /// Nothing: the message was posted, and the peer may have received a part of it.
    Sent,
}

/// The result of a send attempt that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Sent,
    /// The message is large. The caller must expose it to the peer, and then try again.
    NotExposed,
}

impl<'a> Sending<'a> {
    /// Creates a message from the bytes of all `parts`, in order. If there is an `id`, the
    /// completion of the message is reported with this id.
    pub(crate) fn new(parts: &'a [IoSlice<'a>], id: Option<u64>) -> Self {
        Self {
            content: Content::Parts(parts),
            len: total(parts),
            id,
            generation: 0,
        }
    }

    /// Creates a message from the bytes in `memory`.
    pub(crate) fn owned(memory: OutboundBuffer, id: Option<u64>) -> Self {
        Self {
            len: memory.len(),
            content: Content::Memory(memory),
            id,
            generation: 0,
        }
    }

    /// Returns the message's own memory. Returns `None` if the message was sent, or if it refers to
    /// bytes of the application.
    pub(crate) fn into_memory(self) -> Option<OutboundBuffer> {
        match self.content {
            Content::Memory(memory) => Some(memory),
            Content::Exposed(exposed) => Some(exposed.into_buffer()),
            Content::Parts(_) | Content::Sent => None,
        }
    }

    /// Ends the exposure of the message to the peer, and keeps its memory.
    pub(super) fn end_exposure(&mut self) {
        if let Content::Exposed(exposed) = mem::replace(&mut self.content, Content::Sent) {
            self.content = Content::Memory(exposed.into_buffer());
        }
    }

    /// Exposes a large message to the peer. First copies the message if its bytes are not in memory
    /// of the current connection. `generation` is the number of that connection in its session.
    pub(super) fn expose(&mut self, allocator: &Allocator, generation: u32) -> Result<(), Error> {
        self.generation = generation;
        let buffer = match mem::replace(&mut self.content, Content::Sent) {
            Content::Parts(parts) => {
                self.content = Content::Parts(parts);
                copied(parts, self.len, allocator)?
            }
            Content::Memory(buffer) if allocator.owns(&buffer) => buffer,
            Content::Memory(buffer) => {
                let copied = copied(&[IoSlice::new(buffer.bytes())], self.len, allocator);
                copied.inspect_err(|_| self.content = Content::Memory(buffer))?
            }
            content @ (Content::Exposed(_) | Content::Sent) => {
                self.content = content;
                return Ok(());
            }
        };
        let (content, result) = match allocator.expose(buffer) {
            Ok(exposed) => (Content::Exposed(exposed), Ok(())),
            Err((buffer, error)) => (Content::Memory(buffer), Err(Error::from_os(error))),
        };
        self.content = content;
        result
    }
}

/// Copies `len` bytes into memory from the connection's allocator.
fn copied(
    parts: &[IoSlice<'_>],
    len: usize,
    allocator: &Allocator,
) -> Result<OutboundBuffer, Error> {
    let mut buffer = allocator.buffer(len).map_err(Error::from_os)?;
    let mut to = buffer.bytes_mut();
    for part in parts {
        let (here, rest) = to.split_at_mut(part.len());
        here.copy_from_slice(part);
        to = rest;
    }
    Ok(buffer)
}

/// Returns the total length of `parts` in bytes, or `usize::MAX` if the sum is larger. The sum can
/// be larger, because several parts may refer to the same bytes. A result of `usize::MAX` is always
/// above the maximum length of a message.
pub(crate) fn total(parts: &[IoSlice<'_>]) -> usize {
    sum(parts.iter().map(|part| part.len()))
}

fn sum(lens: impl Iterator<Item = usize>) -> usize {
    lens.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_lengths_does_not_wrap_around() {
        assert_eq!(sum([].into_iter()), 0);
        assert_eq!(sum([1, 0, 2].into_iter()), 3);
        // The sum is 2⁶⁴ + 15 if `usize` has 64 bits. With wrap-around it would be 15.
        let quarter = usize::MAX / 4 + 1;
        let lens = [quarter, quarter, quarter, quarter, 15];
        assert_eq!(sum(lens.into_iter()), usize::MAX);
        assert!(sum(lens.into_iter()) > LONGEST);
    }
}
