//! Several messages in one frame: what costs is the frame.

use std::{array, io::IoSlice, sync::Arc};

use super::{core::Core, link::Link, refused::refused_send, send::Outgoing};
use crate::{
    error::{Error, TrySendError},
    proto::{BatchRoom, MOST_PARTS, PART_HEADER_LEN},
};

impl Link {
    /// Sends the first of these messages, of which there is at least one, in one frame: as many as
    /// fit. Returns how many.
    pub(crate) fn try_send_some(
        self: &Arc<Self>,
        messages: &[IoSlice<'_>],
    ) -> Result<usize, TrySendError> {
        match self.with_core(|core| core.try_send_batch(messages))? {
            // Alone it needs no length before it, and it may be a large one.
            0 | 1 => {
                self.try_send(&mut Outgoing::new(&messages[..1], None))?;
                Ok(1)
            }
            count => Ok(count),
        }
    }
}

impl Core {
    /// Sends the first of these messages in one frame, and returns how many, if it is worth it.
    fn try_send_batch(&mut self, messages: &[IoSlice<'_>]) -> Result<usize, TrySendError> {
        self.check_not_ended()?;
        if self.holds_back() {
            // What was taken before goes first.
            return Ok(0);
        }
        let refused = |refused| refused_send(refused, 0);
        let room = self.conn.batch_room().map_err(refused)?;
        let (count, len) = fitting(messages, room);
        if count < 2 {
            return Ok(count);
        }
        let Some(queues) = &mut self.queues else {
            return Err(TrySendError::Failed(Error::Disconnected(self.reason())));
        };
        // The frame has room for each, so its length fits.
        let lens: [[u8; PART_HEADER_LEN]; MOST_PARTS] = array::from_fn(|number| {
            let len = messages.get(number).map_or(0, |message| message.len());
            (len as u32).to_be_bytes()
        });
        let mut parts = [IoSlice::new(&[]); 2 * MOST_PARTS];
        for ((pair, len), message) in parts.chunks_exact_mut(2).zip(&lens).zip(&messages[..count]) {
            pair[0] = IoSlice::new(len);
            pair[1] = IoSlice::new(message);
        }
        // At most MOST_PARTS.
        let transmit = self.conn.send_batch(count as u32, len).map_err(refused)?;
        queues
            .post_send(&transmit, &parts[..2 * count], false)
            .map_err(|error| self.post_failed(error))?;
        Ok(count)
    }
}

/// How many of the first messages fit, and their bytes with their lengths.
fn fitting(messages: &[IoSlice<'_>], room: BatchRoom) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0_usize);
    for message in messages.iter().take(room.messages.min(MOST_PARTS)) {
        let more = bytes + PART_HEADER_LEN;
        match more.checked_add(message.len()) {
            Some(more) if more <= room.bytes => bytes = more,
            Some(_) | None => break,
        }
        count += 1;
    }
    (count, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_sent_as_fit() {
        let bytes = [7; 100];
        let messages: Vec<_> = [10, 0, 86, 1].map(|len| IoSlice::new(&bytes[..len])).into();
        let fits = |messages_: usize, bytes| {
            let room = BatchRoom {
                messages: messages_,
                bytes,
            };
            fitting(&messages, room)
        };
        assert_eq!(fits(100, 1000), (4, 113));
        assert_eq!(fits(100, 113), (4, 113));
        assert_eq!(fits(100, 112), (3, 108));
        assert_eq!(fits(2, 112), (2, 18));
        assert_eq!(fits(1, 112), (1, 14));
        assert_eq!(fits(100, 13), (0, 0));
        let many = vec![IoSlice::new(b""); MOST_PARTS + 1];
        let room = BatchRoom {
            messages: 1000,
            bytes: 1000,
        };
        assert_eq!(fitting(&many, room), (MOST_PARTS, 4 * MOST_PARTS));
    }
}
