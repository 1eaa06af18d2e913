//! Messages that are sent in several frames, and frames that contain several messages.

use std::io::IoSlice;

use crate::{
    proto::{BatchRoom, Connection, MAX_PARTS, PART_HEADER_LEN, SendRefused, Transmit},
    transport::{PostError, WorkQueues},
};

/// A batch of at most this number of messages uses arrays of this length. Longer batches use arrays
/// of length [`MAX_PARTS`].
const SHORT_BATCH: usize = 16;

/// Posts a message of `len` bytes in `count` fragments. If `reported` is true, the completion of
/// the last fragment is reported to the application.
#[inline(never)]
pub(super) fn post_fragments(
    conn: &mut Connection,
    queues: &mut WorkQueues,
    parts: &[IoSlice<'_>],
    len: usize,
    count: u32,
    reported: bool,
) -> Result<Result<(), PostError>, SendRefused> {
    conn.may_send(len)?;
    let mut sends = Vec::with_capacity(count as usize);
    let mut offset = 0;
    while offset < len {
        // The casts are lossless, because a message in fragments is at most a few frames long.
        let (transmit, here) = conn.send_fragment(len as u32, offset as u32)?;
        let end = offset + here as usize;
        sends.push((transmit, range_of(parts, offset, end)));
        offset = end;
    }
    Ok(queues.post_sends(&sends, reported))
}

/// Returns the bytes of `parts` from offset `start` to offset `end`.
fn range_of<'a>(parts: &'a [IoSlice<'_>], start: usize, end: usize) -> Vec<IoSlice<'a>> {
    let mut at = 0;
    let mut range = Vec::with_capacity(1);
    for part in parts {
        let here = at..at + part.len();
        at = here.end;
        let (from, to) = (start.max(here.start), end.min(here.end));
        if from < to {
            range.push(IoSlice::new(&part[from - here.start..to - here.start]));
        }
    }
    range
}

/// Posts a frame that contains these messages. A length field precedes each message.
#[inline]
pub(super) fn post_batch(
    queues: &mut WorkQueues,
    transmit: &Transmit,
    messages: &[IoSlice<'_>],
) -> Result<(), PostError> {
    // Filling an array for the longest batch would cost more than posting a short batch.
    if messages.len() <= SHORT_BATCH {
        post_batch_of::<SHORT_BATCH>(queues, transmit, messages)
    } else {
        post_batch_of::<MAX_PARTS>(queues, transmit, messages)
    }
}

/// Does the same as [`post_batch`] for at most `N` messages.
fn post_batch_of<const N: usize>(
    queues: &mut WorkQueues,
    transmit: &Transmit,
    messages: &[IoSlice<'_>],
) -> Result<(), PostError> {
    let mut lens = [[0; PART_HEADER_LEN]; N];
    let mut parts = [[IoSlice::new(&[]); 2]; N];
    for ((part, len), message) in parts.iter_mut().zip(&mut lens).zip(messages) {
        // Each message fits into the frame, so its length fits into 32 bits.
        *len = (message.len() as u32).to_be_bytes();
        *part = [IoSlice::new(len), IoSlice::new(message)];
    }
    queues.post_send(transmit, parts[..messages.len()].as_flattened(), false)
}

/// Returns the number of messages, counted from the first, that fit into a frame. The second value
/// is the total length in bytes of these messages and their length fields.
pub(super) fn fitting(messages: &[IoSlice<'_>], room: BatchRoom) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0_usize);
    for message in messages.iter().take(room.messages.min(MAX_PARTS)) {
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
    fn batch_sends_the_messages_that_fit() {
        let bytes = [7; 100];
        let messages: Vec<_> = [10, 0, 86, 1].map(|len| IoSlice::new(&bytes[..len])).into();
        let fits = |count: usize, bytes| {
            let room = BatchRoom {
                messages: count,
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
        let many = vec![IoSlice::new(b""); MAX_PARTS + 1];
        let room = BatchRoom {
            messages: 1000,
            bytes: 1000,
        };
        assert_eq!(fitting(&many, room), (MAX_PARTS, 4 * MAX_PARTS));
    }

    #[test]
    fn each_range_of_parts_has_its_bytes() {
        let bytes: Vec<u8> = (0..10).collect();
        let parts = [&bytes[..3], &[], &bytes[3..4], &bytes[4..]].map(IoSlice::new);
        for start in 0..=bytes.len() {
            for end in start..=bytes.len() {
                let range = range_of(&parts, start, end);
                let range: Vec<u8> = range.iter().flat_map(|part| part.to_vec()).collect();
                assert_eq!(range, &bytes[start..end]);
            }
        }
    }
}
