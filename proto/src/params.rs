use std::time::Duration;

use super::{LONGEST_CHUNK, account, credit::CONTROL_RECEIVES};

/// The part of the configuration that the state machine uses.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct Params {
    /// The number of data frames that the peer may have sent and this side not released.
    pub window: u16,
    /// Whether receives are shared with other connections: then the first credits are not the whole
    /// window.
    pub shared: bool,
    /// The largest payload in bytes of a data frame that this side receives.
    pub eager_size: u32,
    /// The largest message in bytes that this side receives.
    pub max_message: u64,
    /// The bytes of large messages that may be in flight to the peer, and that may be held here. A
    /// single message may be longer.
    pub large_memory: u64,
    /// The longest chunk in bytes in which a large message is read.
    pub longest_chunk: u64,
    /// The time for which reads may make no progress, or memory for them may be missing.
    pub read_timeout: Duration,
    /// The slots of the send ring for data, in addition to `READS` and `CONTROL_SENDS`.
    pub send_slots: u32,
    /// The greatest number of frames of a message above the eager size. With 1, the peer reads each
    /// such message from this side's memory.
    pub most_fragments: u32,
    /// The greatest number of bytes of messages between two acknowledgements by the peer's device.
    pub most_unsignalled: u32,
    /// Whether a grant waits up to 2 ms for further releases while the application holds messages.
    pub delays_grants: bool,
    /// The time limit for establishing the connection, including retries.
    pub connect_timeout: Duration,
    /// The time limit of one attempt to resolve the address, and of one to resolve the route.
    pub resolve_timeout: Duration,
    /// Whether to try again when no program listens, the peer is busy, or it remembers an old
    /// connection.
    pub retry_refused: bool,
    /// The time limit of the close handshake.
    pub close_timeout: Duration,
    /// The time limit of draining.
    pub drain_timeout: Duration,
    /// The silence after which the peer is probed.
    pub keepalive_interval: Option<Duration>,
    /// The time limit for a sign of life of a probed peer.
    pub keepalive_timeout: Duration,
    /// Whether the application uses the connection as a byte stream.
    pub stream: bool,
    /// The number of messages from earlier connections of the session that the application holds.
    /// The first credits do not include their places.
    pub held: u16,
    /// The offer of a session in the hello.
    pub session: SessionOffer,
    /// The sum of the bytes of a stream that may be in flight to the peer, and the bytes that may
    /// be unread here.
    pub stream_buffer: u64,
    /// The engine's identity, for the hello.
    pub engine: u64,
    /// The number of the connection in its process, by which connections take turns with periodic
    /// work.
    pub number: u64,
}

/// The offer of a session in a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionOffer {
    /// The connection ends with its transport.
    None,
    /// The connection may begin a session.
    Begin,
    /// The connection resumes a session.
    Resume,
}

impl Params {
    /// Returns the part of the window that the peer may use before the first grant.
    pub fn credits(&self) -> u16 {
        if self.shared {
            account::floor(self.window)
        } else {
            // The window is at least one message, so that the connection makes progress.
            self.window.saturating_sub(self.held).max(1)
        }
    }

    /// Returns the bound on the unread bytes of a stream, which is also the bound on its held back
    /// bytes.
    pub fn half_stream_buffer(&self) -> u64 {
        self.stream_buffer / 2
    }

    /// Returns the length of the messages into which a long write is divided.
    pub fn stream_piece(&self) -> u64 {
        (self.half_stream_buffer() / 2).min(LONGEST_CHUNK)
    }

    /// Returns the number of bytes of large messages that may be in flight to the peer.
    ///
    /// A stream has one piece more than its half of the buffer, because a receiver reports pieces
    /// in pairs, and reads a third one at that time.
    pub fn outbound_limit(&self) -> u64 {
        if self.stream {
            let bytes = self.half_stream_buffer() + self.stream_piece();
            self.large_memory.min(bytes)
        } else {
            self.large_memory
        }
    }

    /// Returns the number of bytes of large messages that may be held here, with the copied bytes
    /// of a stream.
    pub fn inbound_limit(&self) -> u64 {
        if self.stream {
            self.large_memory.min(self.half_stream_buffer())
        } else {
            self.large_memory
        }
    }

    /// Returns the number of frames that the peer may have sent before this side processes any.
    pub fn first_receives(&self) -> u32 {
        CONTROL_RECEIVES + u32::from(self.credits())
    }
}
