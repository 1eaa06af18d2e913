use std::{fmt, time::Duration};

use super::{Params, hello::Hello};

/// The values that the hellos of both sides determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[non_exhaustive]
pub struct Negotiated {
    /// The protocol version.
    pub version: u8,
    /// The number of messages that may be in flight to the peer.
    pub send_window: u16,
    /// The number of messages that may be in flight from the peer.
    pub recv_window: u16,
    /// The largest message in bytes that is sent to the peer in a frame of its own: the smaller of
    /// both sides' eager sizes. Messages of a few times this length are sent in several frames. The
    /// peer reads longer ones from this side's memory.
    pub send_eager: u32,
    /// The largest message in bytes that the peer receives.
    pub send_limit: u64,
    /// The largest message in bytes that this side receives.
    pub recv_limit: u64,
    /// The silence after which this side probes the peer: the smaller of both sides' intervals, but
    /// the peer cannot bring it below 100 ms. `None` if this side's configuration has none; the
    /// peer's probes are answered nevertheless.
    pub keepalive_interval: Option<Duration>,
}

/// The lowest keepalive interval that the peer's hello can request of this side, which pays for the
/// timer.
const MIN_KEEPALIVE: Duration = Duration::from_millis(100);

impl Negotiated {
    /// Returns the negotiated values of a side with these parameters.
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
             messages up to {send_limit} B out ({send_eager} B a frame), \
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
/// An operation that one of the devices does not support is refused with `Error::NotSupported`
/// before anything is sent, and the connection continues. `Endpoint::capabilities` returns them.
/// Over TCP all are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[non_exhaustive]
pub struct Capabilities {
    /// `Endpoint::fetch_add` and `Endpoint::compare_swap`: `atomic_cap` of `ibv_query_device(3)`.
    /// Some adapters lack these operations, and iWARP does not define them.
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

    /// Creates the capabilities of a device.
    #[must_use]
    pub const fn new(atomic: bool, write_with_imm: bool) -> Self {
        Self {
            atomic,
            write_with_imm,
        }
    }

    /// Returns the operations that both support.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            atomic: self.atomic && other.atomic,
            write_with_imm: self.write_with_imm && other.write_with_imm,
        }
    }
}

/// The number of READs that may be outstanding, as the two connection managers agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDepth {
    /// The number of concurrent READs of the peer's memory by this side: the peer's
    /// `responder_resources`.
    pub outgoing: u8,
    /// The number of concurrent READs of this side's memory by the peer: the peer's
    /// `initiator_depth`.
    pub incoming: u8,
}
