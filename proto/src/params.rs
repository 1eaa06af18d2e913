use std::time::Duration;

use super::{LONGEST_CHUNK, account, credit::CONTROL_RECEIVES};

/// The part of the configuration that the state machine uses.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct Params {
    /// The maximum number of data frames that the peer has sent and that this side has not
    /// released.
    pub window: u16,
    /// Whether the connection shares receives with other connections. If it does, its first credits
    /// are fewer than the window.
    pub shared: bool,
    /// The largest payload in bytes of a data frame that this side receives.
    pub eager_size: u32,
    /// The largest message in bytes that this side receives.
    pub max_message: u64,
    /// The maximum number of bytes of large messages in flight to the peer, and of large messages
    /// held at this side. A single message may be longer.
    pub large_memory: u64,
    /// The longest chunk in bytes in which a large message is read.
    pub longest_chunk: u64,
    /// The maximum time without progress of a large message's reads, or without memory for them.
    pub read_timeout: Duration,
    /// The number of slots of the send ring for data, in addition to `READS` and `CONTROL_SENDS`.
    pub send_slots: u32,
    /// The maximum number of frames in which a message above the eager size is sent. With 1, the
    /// peer reads each such message from this side's memory.
    pub most_fragments: u32,
    /// A data frame is signalled after this number of bytes since the last signalled one, so that
    /// the peer's side acknowledges the bytes.
    pub most_unsignalled: u32,
    /// Whether a grant waits up to 2 ms for further releases while the application holds messages.
    pub delays_grants: bool,
    /// The maximum time to establish the connection, including retries.
    pub connect_timeout: Duration,
    /// The maximum time of each attempt to resolve the address, and of each attempt to resolve the
    /// route.
    pub resolve_timeout: Duration,
    /// Whether to retry if no program listens, the peer is busy, or the peer remembers an old
    /// connection.
    pub retry_refused: bool,
    /// The maximum time of the close handshake.
    pub close_timeout: Duration,
    /// The maximum time of draining.
    pub drain_timeout: Duration,
    /// The silence after which this side probes the peer. `None`: this side sends no probes.
    pub keepalive_interval: Option<Duration>,
    /// The time within which a probed peer must give a sign of life.
    pub keepalive_timeout: Duration,
    /// Whether the application uses the connection as a byte stream.
    pub stream: bool,
    /// Whether this side takes control messages.
    pub takes_control_messages: bool,
    /// The number of messages from earlier connections of the session that the application holds.
    /// The first credits are reduced by this number.
    pub held: u16,
    /// Whether the hello offers or resumes a session.
    pub session: SessionOffer,
    /// The maximum number of bytes of a stream in flight to the peer and received but not read,
    /// together.
    pub stream_buffer: u64,
    /// The random number that identifies this side's engine in the hello.
    pub engine: u64,
    /// The number of the connection in its process. Connections use their numbers to take turns
    /// with periodic work.
    pub number: u64,
}

/// Whether a hello offers a session, or resumes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionOffer {
    /// The connection has no session, and ends with its transport.
    None,
    /// The connection can begin a session.
    Begin,
    /// The connection resumes a session.
    Resume,
}

impl Params {
    /// Returns the number of data frames that the peer may send before the first grant.
    pub fn credits(&self) -> u16 {
        if self.shared {
            account::floor(self.window)
        } else {
            // The peer gets at least one credit, so that the connection makes progress.
            self.window.saturating_sub(self.held).max(1)
        }
    }

    /// Returns half of `stream_buffer`: the maximum number of unread bytes of a stream, and the
    /// maximum number of bytes that the driver holds back before it sends them.
    pub fn half_stream_buffer(&self) -> u64 {
        self.stream_buffer / 2
    }

    /// Returns the length in bytes of the pieces into which a long write to a stream is divided.
    /// The peer reads each piece as a large message.
    pub fn stream_piece(&self) -> u64 {
        (self.half_stream_buffer() / 2).min(LONGEST_CHUNK)
    }

    /// Returns the maximum number of bytes of large messages in flight to the peer.
    ///
    /// For a stream, the maximum is half of the stream buffer and one piece more, because a
    /// receiver reports pieces in pairs, and reads a third piece while it reports two.
    pub fn outbound_limit(&self) -> u64 {
        if self.stream {
            let bytes = self.half_stream_buffer() + self.stream_piece();
            self.large_memory.min(bytes)
        } else {
            self.large_memory
        }
    }

    /// Returns the maximum number of bytes held at this side in large messages and in copied bytes
    /// of a stream.
    pub fn inbound_limit(&self) -> u64 {
        if self.stream {
            self.large_memory.min(self.half_stream_buffer())
        } else {
            self.large_memory
        }
    }

    /// Returns the maximum number of frames that the peer can send before this side processes one.
    pub fn first_receives(&self) -> u32 {
        CONTROL_RECEIVES + u32::from(self.credits())
    }
}
