use std::time::Duration;

use super::{LONGEST_CHUNK, account, credit::CONTROL_RECEIVES};

/// The part of the configuration that the state machine uses.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct Params {
    /// The receive window: the maximum number of data frames that the peer has sent and that this
    /// side has not released yet.
    pub window: u16,
    /// Whether the connection shares receives with other connections. If so, the peer's initial
    /// credit can be smaller than the window.
    pub shared: bool,
    /// The maximum length in bytes of the payload of a data frame that this side accepts.
    pub eager_size: u32,
    /// The maximum length in bytes of a message that this side accepts.
    pub max_message: u64,
    /// The maximum number of bytes of large messages in flight to the peer. The same limit applies
    /// separately to the large messages that this side holds. A single message can exceed the
    /// limit.
    pub large_memory: u64,
    /// The maximum length in bytes of the chunks in which a large message is read.
    pub longest_chunk: u64,
    /// The maximum time for which a large message may make no progress, because no bytes arrive or
    /// no memory is available.
    pub read_timeout: Duration,
    /// The number of data slots of the send ring, in addition to `READS` and `CONTROL_SENDS`.
    pub send_slots: u32,
    /// How a message above the eager size is sent in several frames.
    pub fragmentation: Fragmentation,
    /// Whether the peer also acknowledges unsignalled frames, as over TCP. If so, this side signals
    /// fewer frames.
    pub completes_unsignalled: bool,
    /// A data frame is signalled if its payload, together with all payload sent since the previous
    /// signalled frame, reaches this number of bytes. The completion of the data frame shows the
    /// sender that these bytes have arrived.
    pub max_unsignalled: u32,
    /// Whether a grant waits up to 2 ms for the application to release more of the messages that it
    /// holds.
    pub delays_grants: bool,
    /// The maximum time to establish the connection, including retries.
    pub connect_timeout: Duration,
    /// The maximum time to establish the connection after the limit on concurrent setups permits
    /// it. `None` if only `connect_timeout` limits this time.
    pub setup_timeout: Option<Duration>,
    /// The maximum time for each resolution of an address or of a route.
    pub resolve_timeout: Duration,
    /// Whether this side tries to connect again after a refusal. Examples of refusals: no program
    /// listens on the port, the peer is busy, or the peer still has state of an earlier connection.
    pub retry_refused: bool,
    /// The maximum time of the close handshake.
    pub close_timeout: Duration,
    /// The maximum time for which an ending connection waits for the completion of its work
    /// requests.
    pub drain_timeout: Duration,
    /// The time without a sign of life after which this side probes the peer. `None` if this side
    /// sends no probes.
    pub keepalive_interval: Option<Duration>,
    /// The maximum time between a probe and the peer's next sign of life.
    pub keepalive_timeout: Duration,
    /// Whether the application uses the connection as a byte stream.
    pub stream: bool,
    /// Whether this side accepts control messages.
    pub takes_control_messages: bool,
    /// The number of messages from earlier connections of the session that the application still
    /// holds. Without shared receives, the peer's initial credit is reduced by this number, but to
    /// no less than 1.
    pub held: u16,
    /// Whether this side's hello offers or resumes a session.
    pub session: SessionOffer,
    /// The maximum number of bytes that a byte stream buffers in both directions together: the
    /// bytes in flight to the peer, plus the received bytes that the application has not read.
    pub stream_buffer: u64,
    /// A random number with which this side identifies its engine in the hello.
    pub engine: u64,
    /// The number of the connection within its process. Connections use their numbers to spread
    /// periodic work over time.
    pub number: u64,
}

/// Whether a connection's hello offers or resumes a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionOffer {
    /// The hello offers no session, so the connection ends with its transport.
    None,
    /// The hello offers to begin a session.
    Begin,
    /// The hello resumes an existing session.
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

    /// Returns half of `stream_buffer`. This is the limit both on the unread bytes of a stream at
    /// this side, and on the bytes that the driver buffers before it sends them.
    pub fn half_stream_buffer(&self) -> u64 {
        self.stream_buffer / 2
    }

    /// Returns the length in bytes of the pieces into which a long write to a byte stream is
    /// divided. The peer reads each piece as a large message.
    pub fn stream_piece(&self) -> u64 {
        (self.half_stream_buffer() / 2).min(LONGEST_CHUNK)
    }

    /// Returns the maximum number of bytes of large messages in flight to the peer.
    ///
    /// For a byte stream, the maximum is half of the stream buffer plus one piece, but no more than
    /// `large_memory`. The receiver usually reads two pieces before it reports them to the sender.
    /// While this report is in flight, the receiver can read the additional piece.
    pub fn outbound_limit(&self) -> u64 {
        if self.stream {
            let bytes = self.half_stream_buffer() + self.stream_piece();
            self.large_memory.min(bytes)
        } else {
            self.large_memory
        }
    }

    /// Returns the maximum number of bytes of large messages that this side holds. For a byte
    /// stream, the number includes copied bytes.
    pub fn inbound_limit(&self) -> u64 {
        if self.stream {
            self.large_memory.min(self.half_stream_buffer())
        } else {
            self.large_memory
        }
    }

    /// Returns the maximum number of frames that the peer can send before this side has processed
    /// any of them.
    pub fn first_receives(&self) -> u32 {
        CONTROL_RECEIVES + u32::from(self.credits())
    }
}

/// How a message above the eager size is sent in Fragment frames.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct Fragmentation {
    /// The maximum number of frames for a message. If a message needs more frames, the peer instead
    /// reads the message from this side's memory.
    pub max: u32,
    /// Whether all frames of a message except the first are full. Otherwise, all frames except the
    /// last are full.
    pub shortest_first: bool,
}

impl Fragmentation {
    /// Returns the same fragmentation with at most `max` frames for a message.
    pub(crate) fn at_most(self, max: u32) -> Self {
        Self {
            max: self.max.min(max),
            ..self
        }
    }

    /// Returns the length in bytes of the next fragment, if `rest` bytes of the message are not
    /// sent. `longest` is the maximum length of a fragment.
    pub(crate) fn next(self, rest: u32, longest: u32) -> u32 {
        if self.shortest_first {
            (rest - 1) % longest + 1
        } else {
            rest.min(longest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_fragment_is_not_full() {
        let fragments = |shortest_first, len| {
            let fragmentation = Fragmentation {
                max: 3,
                shortest_first,
            };
            let mut rest = len;
            let mut lens = Vec::new();
            while rest > 0 {
                lens.push(fragmentation.next(rest, 10));
                rest -= lens.last().unwrap();
            }
            lens
        };
        for shortest_first in [false, true] {
            assert_eq!(fragments(shortest_first, 30), [10, 10, 10]);
        }
        assert_eq!(fragments(false, 21), [10, 10, 1]);
        assert_eq!(fragments(true, 21), [1, 10, 10]);
        assert_eq!(fragments(true, 29), [9, 10, 10]);
    }
}
