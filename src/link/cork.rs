//! Holds stream bytes that the application writes while the window is full.
//!
//! The [`Cork`] collects the bytes into frames, which the connection sends when the peer grants
//! credits. A writer that is faster than the peer's reader therefore sends long frames. The held
//! bytes occupy at most half of the stream buffer
//! ([`Config::stream_buffer`](crate::Config::stream_buffer)), or one frame if that is more. Once
//! the cork contains a full frame, it accepts only writes of up to 16 KiB, because copying a longer
//! write costs more than waiting for room. Held bytes are sent before Finish and Close, and a flush
//! waits for them.
//!
//! After a write, the application might make no further call that would send the held bytes. The
//! engine therefore checks the connection every 1 ms while the cork holds bytes. The engine does
//! not take over the polling of the connection, because the engine's thread would then wake twice
//! for each frame.

use std::{io::IoSlice, mem};

use crate::proto::{BatchRoom, MAX_PARTS, PART_HEADER_LEN, parts};

/// The maximum length in bytes of a write that is added to the cork when the cork already holds a
/// full frame. A longer write waits for room in the window, because copying its bytes costs more
/// than waiting.
pub(super) const LONGEST_TO_JOIN: usize = 16 << 10;

/// Stream bytes that the application wrote while the window was full, stored as messages. The next
/// thread that finds room in the window sends the held messages in full frames, even if another
/// thread added them.
#[derive(Debug, Default)]
pub(super) struct Cork {
    /// The messages in the format of a batch: a length field precedes each message. After all
    /// messages have been sent, the vector keeps the capacity for one frame, so that the next
    /// message needs no allocation.
    bytes: Vec<u8>,
    /// The number of bytes at the start of `bytes` that have been sent.
    gone: usize,
    /// The offset in `bytes` at which the content of the newest message begins.
    last: usize,
    /// The number of bytes that a length field and the maximum payload of a frame occupy together.
    /// Set when a message begins.
    frame: usize,
    /// The total number of stream bytes ever added.
    joined: u64,
    /// The total number of stream bytes ever sent.
    left: u64,
}

/// A prefix of the messages in a cork that fits into one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Front {
    /// The number of messages, at least one.
    pub(super) count: usize,
    /// The length of the messages and of their length fields, in bytes.
    pub(super) len: usize,
}

impl Cork {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.gone
    }

    /// Returns the total number of stream bytes ever added.
    pub(super) fn joined(&self) -> u64 {
        self.joined
    }

    /// Returns whether the first `joined` bytes that were ever added have been sent.
    pub(super) fn has_sent(&self, joined: u64) -> bool {
        self.left >= joined
    }

    /// Returns the number of stream bytes that can be added. `longest` is the maximum payload of a
    /// frame. The cork may hold up to `most` bytes, or one frame if that is more.
    pub(super) fn room(&self, longest: usize, most: usize) -> usize {
        let most = most.max(PART_HEADER_LEN + longest);
        most.saturating_sub(self.len().max(PART_HEADER_LEN))
    }

    /// Appends bytes of `parts`: fills the newest message up to `longest` bytes, and then begins
    /// new messages. The cork may hold up to `most` bytes, or one frame if that is more. Returns
    /// the number of bytes added.
    pub(super) fn extend(&mut self, parts: &[IoSlice<'_>], longest: usize, most: usize) -> usize {
        let room = self.room(longest, most);
        let mut left = room;
        for part in parts {
            let mut part = &part[..part.len().min(left)];
            left -= part.len();
            while !part.is_empty() {
                if self.is_empty() || self.bytes.len() - self.last == longest {
                    self.begin(longest);
                }
                let fits = part.len().min(self.last + longest - self.bytes.len());
                let (here, rest) = part.split_at(fits);
                self.bytes.extend_from_slice(here);
                self.joined += here.len() as u64;
                self.end();
                part = rest;
            }
        }
        room - left
    }

    /// Splits the held bytes into messages of up to `longest` bytes, because the frames of a
    /// session's next connection may be shorter.
    pub(super) fn fit(&mut self, longest: usize) {
        if self.is_empty() {
            return;
        }
        let before = mem::take(self);
        let rest = &before.bytes[before.gone..];
        for (start, len) in parts(rest) {
            let message = IoSlice::new(&rest[start as usize..][..len as usize]);
            self.extend(&[message], longest, usize::MAX);
        }
        (self.joined, self.left) = (before.joined, before.left);
    }

    /// Begins a message with a placeholder for the length field, which [`end`](Self::end) sets.
    fn begin(&mut self, longest: usize) {
        self.frame = PART_HEADER_LEN + longest;
        if self.is_empty() {
            self.bytes.reserve_exact(self.frame);
        }
        self.bytes.extend_from_slice(&[0; PART_HEADER_LEN]);
        self.last = self.bytes.len();
    }

    /// Sets the length field of the newest message, which extends to the end of `bytes`.
    fn end(&mut self) {
        // The cast is lossless, because the message fits into a frame.
        let len = (self.bytes.len() - self.last) as u32;
        self.bytes[self.last - PART_HEADER_LEN..self.last].copy_from_slice(&len.to_be_bytes());
    }

    /// Returns the longest prefix of the held messages that fits into one frame.
    pub(super) fn front(&self, room: BatchRoom) -> Front {
        let mut front = Front { count: 0, len: 0 };
        for (start, len) in parts(&self.bytes[self.gone..]).take(room.messages.min(MAX_PARTS)) {
            let end = start as usize + len as usize;
            // The first message always fits, because a single message is sent without a length
            // field.
            if front.count > 0 && end > room.bytes {
                break;
            }
            front = Front {
                count: front.count + 1,
                len: end,
            };
        }
        front
    }

    /// Returns the payload of a frame that carries these messages. If there is only one message,
    /// the payload has no length field.
    pub(super) fn payload(&self, front: Front) -> &[u8] {
        let start = if front.count == 1 { PART_HEADER_LEN } else { 0 };
        &self.bytes[self.gone..][start..front.len]
    }

    /// Removes messages that have been sent.
    pub(super) fn mark_sent(&mut self, front: Front) {
        self.gone += front.len;
        self.left += (front.len - front.count * PART_HEADER_LEN) as u64;
        // The remaining bytes are moved only when at least half of the bytes have been sent. So on
        // average at most one byte is moved for each byte sent.
        if 2 * self.gone >= self.bytes.len() {
            self.bytes.drain(..self.gone);
            self.last = self.last.saturating_sub(self.gone);
            self.gone = 0;
        }
        if self.is_empty() {
            self.bytes.shrink_to(self.frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: BatchRoom = BatchRoom {
        messages: 1000,
        bytes: 1000,
    };

    #[test]
    fn bytes_of_a_stream_join_in_long_messages() {
        let mut cork = Cork::default();
        let parts = [IoSlice::new(b"abc"), IoSlice::new(b"de")];
        let room = BatchRoom {
            messages: 9,
            bytes: 4,
        };
        let (mut written, mut left) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            for most in [30, 5, 30] {
                let count = cork.extend(&parts, 4, most);
                written.extend_from_slice(&b"abcde"[..count]);
            }
            let front = cork.front(room);
            assert_eq!((front.count, cork.payload(front).len()), (1, 4));
            left.extend_from_slice(cork.payload(front));
            cork.mark_sent(front);
        }
        while !cork.is_empty() {
            let front = cork.front(room);
            left.extend_from_slice(cork.payload(front));
            cork.mark_sent(front);
        }
        assert_eq!(left, written);
        assert!(cork.has_sent(cork.joined()));
    }

    #[test]
    fn bytes_of_a_stream_fit_shorter_and_longer_frames() {
        let mut cork = Cork::default();
        let bytes: Vec<u8> = (0..100).collect();
        assert_eq!(cork.extend(&[IoSlice::new(&bytes)], 64, 1000), 100);
        let (joined, mut left) = (cork.joined(), Vec::new());
        for longest in [16, 7, 50] {
            cork.fit(longest);
            let room = BatchRoom {
                messages: 1,
                bytes: longest,
            };
            let front = cork.front(room);
            assert_eq!(cork.payload(front).len(), longest);
            left.extend_from_slice(cork.payload(front));
            cork.mark_sent(front);
            assert!(!cork.has_sent(joined));
            assert_eq!(cork.extend(&[IoSlice::new(b"x")], longest, 1000), 1);
        }
        while !cork.is_empty() {
            let front = cork.front(EVERYTHING);
            for (start, len) in parts(&cork.bytes[cork.gone..]).take(front.count) {
                left.extend_from_slice(&cork.bytes[cork.gone..][start as usize..][..len as usize]);
            }
            cork.mark_sent(front);
        }
        assert_eq!(left, [&bytes[..], b"xxx"].concat());
        assert!(cork.has_sent(cork.joined()));
    }

    #[test]
    fn bytes_of_a_stream_make_one_message() {
        let mut cork = Cork::default();
        let parts = [IoSlice::new(b"abc"), IoSlice::new(b"de")];
        assert_eq!(cork.extend(&parts, 7, 0), 5);
        assert_eq!(cork.extend(&parts, 7, 0), 2);
        assert_eq!(cork.extend(&parts, 7, 0), 0);
        let front = cork.front(BatchRoom {
            messages: 9,
            bytes: 7,
        });
        assert_eq!(front.count, 1);
        assert_eq!(cork.payload(front), b"abcdeab");
        cork.mark_sent(front);
        assert_eq!(cork.extend(&parts[1..], 7, 0), 2);
        assert_eq!(cork.payload(cork.front(EVERYTHING)), b"de");
    }
}
