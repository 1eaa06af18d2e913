//! Byte streams: the bounds on their unread bytes, whatever the pieces in which they travel.

use super::Connection;
use crate::Clock;

impl Connection {
    /// Makes the connection a byte stream.
    pub fn carry_bytes(&mut self) {
        self.params.stream = true;
        if let Some(transfer) = &mut self.transfer {
            transfer.set_limits(&self.params);
        }
    }

    /// Returns the length of the pieces in which a long write is read by the peer.
    pub fn stream_piece(&self) -> u64 {
        self.params.stream_piece()
    }

    /// Returns the number of bytes of a stream that may be held back: its half of the buffer
    /// without the bytes that the peer has yet to read from memory, and a frame at least.
    pub fn most_held_back(&self) -> u64 {
        let Some(transfer) = &self.transfer else {
            return 0;
        };
        let half = self.params.half_stream_buffer();
        let frame = transfer.negotiated().send_eager.into();
        half.saturating_sub(transfer.outbound.bytes()).max(frame)
    }

    /// Whether the caller copies a message of `len` bytes: unread messages hold too many receives,
    /// and the copy fits the buffer with the unread bytes that are `buffered` in receives.
    ///
    /// Too many are more than half of the receives, or three quarters if a reader `comes`, because
    /// the reader takes them without a copy. So a peer always has credits for some messages.
    ///
    /// The caller copies the message, releases its receive at once, and reports that with
    /// [`copied`](Self::copied).
    pub fn may_copy(&self, len: u32, buffered: u64, comes: bool) -> bool {
        let Some(transfer) = &self.transfer else {
            return false;
        };
        let (held, receives) = (transfer.recv_credit.held(), transfer.recv_credit.promised());
        let enough = if comes {
            receives - receives / 4
        } else {
            receives / 2
        };
        // An empty one keeps its receive, so that a peer cannot send them without end.
        len > 0 && held > enough && transfer.inbound.has_room_for(len.into(), buffered)
    }

    /// Takes notice that a message of `len` bytes was copied, until
    /// [`release_copied`](Self::release_copied).
    pub fn copied(&mut self, len: u32) {
        if let Some(transfer) = &mut self.transfer {
            transfer.inbound.copied(len.into());
        }
    }

    /// Whether the caller copies a large message: more than half of the large messages that may be
    /// held are.
    pub fn may_copy_large(&self) -> bool {
        let transfer = self.transfer.as_ref();
        transfer.is_some_and(|transfer| transfer.inbound.may_copy_large())
    }

    /// As [`copied`](Self::copied), for a large message, which counts as released.
    pub fn copied_large(&mut self, len: u64, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.inbound.release(len);
            transfer.inbound.copied(len);
        }
        self.read_on(now);
    }

    /// Takes notice that the application has read `len` bytes that were copied.
    pub fn release_copied(&mut self, len: u64, now: impl Clock) {
        if let Some(transfer) = &mut self.transfer {
            transfer.inbound.release_copied(len);
        }
        self.read_on(now);
    }
}
