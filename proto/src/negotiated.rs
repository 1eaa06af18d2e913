use std::{fmt, time::Duration};

use super::{
    Params, SessionOffer,
    hello::{Hello, SESSION},
};

/// The parameters of a connection that result from the hellos of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[non_exhaustive]
pub struct Negotiated {
    /// The protocol version.
    pub version: u8,
    /// The maximum number of messages in flight to the peer.
    pub send_window: u16,
    /// The maximum number of messages in flight from the peer.
    pub recv_window: u16,
    /// The maximum length in bytes of a message that is sent to the peer in a single frame: the
    /// smallest of the two sides' eager sizes and the peer's maximum message length. A message of
    /// up to a few times this length is sent in several frames. The peer reads longer messages from
    /// this side's memory.
    pub send_eager: u32,
    /// The maximum length in bytes of a message that the peer accepts.
    pub send_limit: u64,
    /// The maximum length in bytes of a message that this side accepts.
    pub recv_limit: u64,
    /// The time without a sign of life after which this side probes the peer. This is the smaller
    /// of the two sides' intervals, or this side's interval if the peer has none. A peer's interval
    /// below 100 ms counts as 100 ms. `None` if this side's configuration has no interval. Even
    /// then, this side answers the peer's probes.
    pub keepalive_interval: Option<Duration>,
    /// Whether the session resumes after the connection is lost. This requires that both sides set
    /// `Config::resume`. Each side applies the time limit from its own configuration. The hellos do
    /// not contain these limits.
    pub resumes: bool,
}

/// The shortest keepalive interval that the peer's hello can impose on this side. This minimum
/// limits the cost of this side's timer.
const MIN_KEEPALIVE: Duration = Duration::from_millis(100);

impl Negotiated {
    /// Returns the parameters of the connection between this side, which uses `params`, and the
    /// peer, which has sent the hello `peer`.
    pub(super) fn new(params: &Params, peer: &Hello) -> Self {
        //= PROTOCOL.md#hello
        //# A side that probes uses the smaller of both intervals. rdmsg: a peer cannot reduce the
        //# interval below 100 ms.
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
            resumes: params.session != SessionOffer::None && peer.features & SESSION != 0,
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
            resumes,
        } = self;
        write!(
            f,
            "version {version}; window {send_window} out, {recv_window} in; \
             messages up to {send_limit} B out ({send_eager} B a frame), \
             {recv_limit} B in; keepalive "
        )?;
        match keepalive_interval {
            Some(interval) => write!(f, "{interval:?}")?,
            None => f.write_str("off")?,
        }
        f.write_str(if *resumes { "; resumes" } else { "" })
    }
}

/// The operations that a device supports in addition to messages, READs and WRITEs.
///
/// `Endpoint::capabilities` returns the operations that the devices of both sides support. An
/// unsupported operation fails with `Error::NotSupported` before anything is sent, and the
/// connection continues. Over TCP, all operations are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether `Endpoint::fetch_add` and `Endpoint::compare_swap` are supported: see `atomic_cap`
    /// in `ibv_query_device(3)`. Some adapters do not support atomic operations, and iWARP does not
    /// define them.
    pub atomic: bool,
    /// Whether `Endpoint::write_with_imm` is supported. iWARP does not define this operation
    /// (RDMAP, RFC 5040).
    pub write_with_imm: bool,
}

impl Capabilities {
    /// All operations are supported.
    pub const ALL: Self = Self {
        atomic: true,
        write_with_imm: true,
    };

    /// Creates the capabilities of a device from the operations that it supports.
    #[must_use]
    pub const fn new(atomic: bool, write_with_imm: bool) -> Self {
        Self {
            atomic,
            write_with_imm,
        }
    }

    /// Returns the operations that both `self` and `other` support.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            atomic: self.atomic && other.atomic,
            write_with_imm: self.write_with_imm && other.write_with_imm,
        }
    }
}

/// The maximum number of outstanding READs in each direction, as negotiated by the two connection
/// managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDepth {
    /// The maximum number of concurrent READs by this side from the peer's memory: the peer's
    /// `responder_resources`.
    pub outgoing: u8,
    /// The maximum number of concurrent READs by the peer from this side's memory: the peer's
    /// `initiator_depth`.
    pub incoming: u8,
}
