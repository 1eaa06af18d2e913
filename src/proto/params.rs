use std::{fmt, time::Duration};

use super::{account, control_receives::CONTROL_RECEIVES};

/// The configuration as far as the state machine goes by it.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    /// Data frames that the peer may have sent and this side not let go of.
    pub(crate) window: u16,
    /// Whether receives are shared with other connections, so that not the whole window is there from the beginning.
    pub(crate) shared: bool,
    /// The largest payload in bytes of one data frame that this side takes.
    pub(crate) eager_size: u32,
    /// The largest message in bytes that this side takes.
    pub(crate) max_message: u64,
    /// How many bytes of large messages may be on their way to the peer, and how many may be held here. One alone may be longer.
    pub(crate) large_memory: u64,
    /// The longest chunk in bytes in which a large message is read.
    pub(crate) longest_chunk: u64,
    /// How long reads may stand still, and how long memory may be missing for them.
    pub(crate) read_timeout: Duration,
    /// Slots of the send ring for data; `READS` and `CONTROL_SENDS` come on top.
    pub(crate) send_slots: u32,
    /// The bound on establishing the connection, retries included.
    pub(crate) connect_timeout: Duration,
    /// The bound on one attempt to resolve the address, and on one to resolve the route.
    pub(crate) resolve_timeout: Duration,
    /// Whether to try again when nobody listens, or the peer remembers an old connection.
    pub(crate) retry_refused: bool,
    /// The bound on the close handshake.
    pub(crate) close_timeout: Duration,
    /// The bound on draining.
    pub(crate) drain_timeout: Duration,
    /// After how long a silence the peer is probed.
    pub(crate) keepalive_interval: Option<Duration>,
    /// How long a probed peer has for a sign of life.
    pub(crate) keepalive_timeout: Duration,
    /// The engine's identity, for the hello.
    pub(crate) engine: u64,
}

/// How many READs may be under way on a connection, as the two connection managers agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadDepth {
    /// This side's reads of the peer's memory: the peer's `responder_resources`.
    pub(crate) outgoing: u8,
    /// The peer's reads of this side's memory: its `initiator_depth`.
    pub(crate) incoming: u8,
}

impl Params {
    /// How much of the window the peer may use before the first grant.
    pub(crate) fn credits(&self) -> u16 {
        if self.shared {
            account::floor(self.window)
        } else {
            self.window
        }
    }

    /// How many frames the peer may have sent before this side has looked at any.
    pub(crate) fn first_receives(&self) -> u32 {
        CONTROL_RECEIVES + u32::from(self.credits())
    }
}

/// What the two sides' hellos came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// The protocol version.
    pub version: u8,
    /// How many messages may be on their way to the peer.
    pub send_window: u16,
    /// How many messages may be on their way from the peer.
    pub recv_window: u16,
    /// The largest message in bytes that goes to the peer in a frame of its own: the smaller of both sides' eager sizes. The peer reads
    /// longer ones from this side's memory.
    pub send_eager: u32,
    /// The largest message in bytes that the peer takes.
    pub send_limit: u64,
    /// The largest message in bytes that this side takes.
    pub recv_limit: u64,
    /// After how long a silence this side probes the peer: the smaller of both sides' intervals, but the peer cannot bring it below
    /// 100 ms. Without one of its own, this side does not probe, and answers the peer's probes all the same.
    pub keepalive_interval: Option<Duration>,
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
            "version {version}; window {send_window} out, {recv_window} in; messages up to {send_limit} B out (above {send_eager} B read by the peer), {recv_limit} B in; keepalive "
        )?;
        match keepalive_interval {
            Some(interval) => write!(f, "{interval:?}"),
            None => f.write_str("off"),
        }
    }
}
