use std::{fmt, time::Duration};

use super::{LONGEST_CHUNK, account, credit::CONTROL_RECEIVES, hello::Hello};

/// The part of the configuration that the state machine uses.
#[derive(Clone, Debug)]
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
    /// The time for which reads may stand still, or memory for them may be missing.
    pub read_timeout: Duration,
    /// The slots of the send ring for data, beside `READS` and `CONTROL_SENDS`.
    pub send_slots: u32,
    /// The bytes of messages behind which the peer's side acknowledges.
    pub most_unsignalled: u32,
    /// The bound on establishing the connection, retries included.
    pub connect_timeout: Duration,
    /// The bound on one attempt to resolve the address, and on one to resolve the route.
    pub resolve_timeout: Duration,
    /// Whether to try again when nobody listens, the peer is busy, or it remembers an old
    /// connection.
    pub retry_refused: bool,
    /// The bound on the close handshake.
    pub close_timeout: Duration,
    /// The bound on draining.
    pub drain_timeout: Duration,
    /// The silence after which the peer is probed.
    pub keepalive_interval: Option<Duration>,
    /// The time that a probed peer has for a sign of life.
    pub keepalive_timeout: Duration,
    /// Whether the application uses the connection as a byte stream.
    pub stream: bool,
    /// The bytes of a stream that may be on their way to the peer and not read here, together.
    pub stream_buffer: u64,
    /// The engine's identity, for the hello.
    pub engine: u64,
    /// Which of the engine's connections it is: what each does now and then they do in turn.
    pub number: u64,
}

/// The number of READs that may be outstanding, as the two connection managers agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDepth {
    /// Of this side, reading the peer's memory: the peer's `responder_resources`.
    pub outgoing: u8,
    /// Of the peer, reading this side's memory: its `initiator_depth`.
    pub incoming: u8,
}

impl Params {
    /// Returns the part of the window that the peer may use before the first grant.
    pub fn credits(&self) -> u16 {
        if self.shared {
            account::floor(self.window)
        } else {
            self.window
        }
    }

    /// Returns the bound on the unread bytes of a stream, and that on its held back bytes.
    pub fn half_stream_buffer(&self) -> u64 {
        self.stream_buffer / 2
    }

    /// Returns the length of the pieces in which a long write is read by the peer.
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

/// The outcome of the two sides' hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// The protocol version.
    pub version: u8,
    /// The number of messages that may be in flight to the peer.
    pub send_window: u16,
    /// The number of messages that may be in flight from the peer.
    pub recv_window: u16,
    /// The largest message in bytes that is sent to the peer in a frame of its own: the smaller of
    /// both sides' eager sizes. The peer reads longer ones from this side's memory.
    pub send_eager: u32,
    /// The largest message in bytes that the peer receives.
    pub send_limit: u64,
    /// The largest message in bytes that this side receives.
    pub recv_limit: u64,
    /// The silence after which this side probes the peer: the smaller of both sides' intervals, but
    /// the peer cannot bring it below 100 ms. `None` if this side's configuration has none; the
    /// peer's probes are answered all the same.
    pub keepalive_interval: Option<Duration>,
}

/// The lowest keepalive interval that the peer's hello can request of this side, which pays for the
/// timer.
const MIN_KEEPALIVE: Duration = Duration::from_millis(100);

impl Negotiated {
    /// Returns the outcome for a side with these parameters.
    pub(super) fn new(params: &Params, peer: &Hello) -> Self {
        //= PROTOCOL.md#hello
        //# A side that probes uses the smaller of both intervals. rdmsg: a peer cannot bring it
        //# below 100 ms.
        let keepalive_interval = match (params.keepalive_interval, peer.keepalive_ms) {
            (Some(ours), theirs @ 1..) => {
                Some(ours.min(MIN_KEEPALIVE.max(Duration::from_millis(theirs.into()))))
            }
            (ours, _) => ours,
        };
        Self {
            version: peer.version,
            send_window: peer.window,
            recv_window: params.window,
            send_eager: u64::from(peer.eager_size.min(params.eager_size)).min(peer.max_message)
                as u32,
            send_limit: peer.max_message,
            recv_limit: params.max_message,
            keepalive_interval,
        }
    }
}

impl fmt::Display for Negotiated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            version,
            send_window,
            recv_window,
            send_eager,
            send_limit,
            recv_limit,
            keepalive_interval,
        } = self;
        write!(
            f,
            "version {version}; window {send_window} out, {recv_window} in; \
             messages up to {send_limit} B out (above {send_eager} B read by the peer), \
             {recv_limit} B in; keepalive "
        )?;
        match keepalive_interval {
            Some(interval) => write!(f, "{interval:?}"),
            None => f.write_str("off"),
        }
    }
}

/// The operations that the devices of both sides support in addition to messages, reads and writes.
///
/// An operation that either cannot do is refused with
/// `Error::NotSupported` before anything is sent, and the connection goes on.
/// `Endpoint::capabilities` returns them. Over TCP all are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// `Endpoint::fetch_add` and `Endpoint::compare_swap`: `atomic_cap` of `ibv_query_device(3)`.
    /// Some adapters have them not, and iWARP does not know them.
    pub atomic: bool,
    /// `Endpoint::write_with_imm`: iWARP's RDMAP (RFC 5040) has no such operation.
    pub write_with_imm: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self = Self {
        atomic: true,
        write_with_imm: true,
    };

    /// Names the operations of a device.
    #[must_use]
    pub const fn new(atomic: bool, write_with_imm: bool) -> Self {
        Self {
            atomic,
            write_with_imm,
        }
    }

    /// Returns the operations of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            atomic: self.atomic && other.atomic,
            write_with_imm: self.write_with_imm && other.write_with_imm,
        }
    }
}
