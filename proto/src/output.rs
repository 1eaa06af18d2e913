//! The inputs and outputs of a [`Connection`](super::Connection).

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use log::Level;
use rdma_status::{CmStatus, RejectReason};

use super::{
    Capabilities, CloseReason, ReadDepth,
    frame::{Control, HEADER_LEN, Kind},
    hello::PrivateBytes,
};

/// A connection manager event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmInput<'a> {
    AddrResolved,
    AddrError(CmStatus),
    RouteResolved,
    RouteError(CmStatus),
    ConnectResponse,
    ConnectError(CmStatus),
    Unreachable(CmStatus),
    /// The attempt failed, and the transport itself states the reason, as TCP does.
    Failed(&'a CloseReason),
    Rejected {
        reason: RejectReason,
        private_data: &'a [u8],
    },
    /// `reads` is meaningful on the active side only.
    Established {
        private_data: &'a [u8],
        reads: ReadDepth,
    },
    Disconnected,
    DeviceRemoval,
    AddrChange,
    TimewaitExit,
    /// An event that no state expects, or whose number is unknown.
    Other(u32),
}

impl CmInput<'_> {
    /// Returns the event's name for the log.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::AddrResolved => "ADDR_RESOLVED",
            Self::AddrError(_) => "ADDR_ERROR",
            Self::RouteResolved => "ROUTE_RESOLVED",
            Self::RouteError(_) => "ROUTE_ERROR",
            Self::ConnectResponse => "CONNECT_RESPONSE",
            Self::ConnectError(_) => "CONNECT_ERROR",
            Self::Unreachable(_) => "UNREACHABLE",
            Self::Failed(_) => "a failure",
            Self::Rejected { .. } => "REJECTED",
            Self::Established { .. } => "ESTABLISHED",
            Self::Disconnected => "DISCONNECTED",
            Self::DeviceRemoval => "DEVICE_REMOVAL",
            Self::AddrChange => "ADDR_CHANGE",
            Self::TimewaitExit => "TIMEWAIT_EXIT",
            Self::Other(_) => "an unknown event",
        }
    }
}

/// A source of the time, for inputs that seldom need it. Reading the clock costs about as much as
/// handling a message.
pub trait Clock: Copy {
    /// Returns the current time.
    fn now(self) -> Instant;
}

/// An instant that the caller has already read from the clock.
impl Clock for Instant {
    fn now(self) -> Instant {
        self
    }
}

/// The work request whose completion failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum Work {
    Send {
        slot: u32,
    },
    Recv {
        buffer: u32,
    },
    /// A chunk of the peer's large message, posted for [`Output::Read`].
    Read {
        slot: u32,
    },
    /// The invalidation of the key of a large message of this side.
    Invalidation,
}

/// The work queue of a drain marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum DrainSide {
    Send,
    Recv,
}

/// An action for the driver. The driver performs the outputs in their order.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub enum Output {
    /// Make a connection manager call. The driver reports a failure with `handle_cm_failure`.
    Cm(CmOp),
    /// Post a control frame: a header without payload.
    Post(Transmit),
    /// Post a control frame with this payload.
    PostWithPayload(Transmit, Arc<[u8]>),
    /// Post this receive buffer again, because its frame has been processed.
    Repost(u32),
    /// Post this receive buffer again and call `release`. Its frame took a credit, and no part of
    /// the frame is kept.
    Release(u32),
    /// Find a place in memory for a large message of the peer, with this id and length in bytes,
    /// and report it with `handle_memory`. This output is repeated while the driver finds no
    /// memory.
    Begin { id: u32, len: u64 },
    /// Prepare memory for this chunk of a large message, and report it with `handle_prepared`. An
    /// [`Output::Read`] of the chunk follows. This output is repeated while the driver finds no
    /// memory.
    Prepare { id: u32, offset: u64, len: u64 },
    /// Post the read of a chunk of the peer's large message. The driver reports the completion with
    /// `handle_read`.
    Read(Read),
    /// Copy a fragment of a large message to its place, and report the copy with `handle_copied`.
    /// This output is repeated while the driver finds no memory.
    Copy(FragmentCopy),
    /// Post a signalled zero-length write in this slot of the send ring. The write reaches the
    /// peer's device, but the peer's library does not see it.
    Nudge { slot: u32 },
    /// Move the queue pair to its error state, and post one marker behind the last send and one
    /// behind the last receive.
    PostDrainMarkers,
    /// Call `next_timeout`, whose result has changed. After the end of the connection there is no
    /// deadline, which this output does not report.
    Timer,
    /// Report an event to the application.
    Event(Event),
    /// Write this line to the log. The driver must not hold a lock then.
    Note(Note),
}

/// The queue of outputs.
///
/// Most inputs lead to a single output, which bypasses the queue.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Outputs {
    /// The first output, before those in `rest`.
    first: Option<Output>,
    rest: VecDeque<Output>,
}

impl Outputs {
    pub(super) fn new() -> Self {
        Self {
            first: None,
            rest: VecDeque::new(),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    #[inline]
    pub(super) fn push(&mut self, output: Output) {
        if self.is_empty() {
            self.first = Some(output);
        } else {
            self.rest.push_back(output);
        }
    }

    /// Has the driver log this text, if the program logs lines of this level.
    pub(super) fn note(&mut self, level: Level, text: fmt::Arguments<'_>) {
        if let Some(note) = Note::new(level, text) {
            self.push(Output::Note(note));
        }
    }

    /// Has the driver log a warning of this topic. The driver limits the rate of these warnings.
    pub(super) fn warn(&mut self, topic: Topic, text: fmt::Arguments<'_>) {
        if let Some(note) = Note::new(Level::Warn, text) {
            let topic = Some(topic);
            self.push(Output::Note(Note { topic, ..note }));
        }
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Output> {
        self.first.take().or_else(|| self.rest.pop_front())
    }
}

/// Outputs are not part of a state, because the driver performs all outputs before the next input.
#[cfg(test)]
impl std::hash::Hash for Outputs {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {
        assert!(self.is_empty(), "the driver has carried all outputs out");
    }
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub level: Level,
    /// The topic of a line whose rate the driver limits. `None` for other lines.
    pub topic: Option<Topic>,
    pub text: String,
}

/// The topics of log lines that a peer or the network can cause at will, and whose rate is
/// therefore limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The peer violated the protocol.
    Violation,
    /// The connection manager reported an event that is unexpected in the connection's present
    /// state.
    UnexpectedEvent,
}

impl Note {
    /// Returns the note. Returns `None`, and does not format the text, if the program logs no lines
    /// of this level.
    pub fn new(level: Level, text: fmt::Arguments<'_>) -> Option<Self> {
        (level <= log::max_level()).then(|| Self {
            level,
            topic: None,
            text: text.to_string(),
        })
    }
}

/// The properties of a new transport on which the state machine depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct TransportTraits {
    pub capabilities: Capabilities,
    /// Whether the passive side must not send before it has received a frame, as on iWARP (RFC
    /// 5044, section 7.1), because the peer might misread bytes directly behind the reply.
    pub active_speaks_first: bool,
    /// Whether a send or a write completes only after the peer's device has received it. On iWARP,
    /// it completes as soon as its buffer can be overwritten, because TCP has copied the bytes.
    pub acknowledges_sends: bool,
    /// Whether a work request that is posted in the queue pair's error state completes with an
    /// error. If so, the driver of this state machine can use such a request as a marker behind all
    /// others. The device drivers of iWARP devices can refuse it, or never complete it.
    pub flushes: bool,
}

impl TransportTraits {
    /// A transport with all capabilities and no restrictions.
    pub const UNRESTRICTED: Self = Self {
        capabilities: Capabilities::ALL,
        active_speaks_first: false,
        acknowledges_sends: true,
        flushes: true,
    };
}

/// A connection manager call, or an action that accompanies one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmOp {
    /// Call `take_turn` as soon as the limit on concurrent attempts permits another one. The oldest
    /// waiting connection is first.
    AwaitTurn,
    /// Make a connection manager id.
    CreateId,
    ResolveAddr {
        timeout: Duration,
    },
    /// Make the queue pair and the buffers, post all receives, and report the transport with
    /// `handle_transport`.
    CreateTransport,
    ResolveRoute {
        timeout: Duration,
    },
    Connect {
        private_data: PrivateBytes,
    },
    Accept {
        private_data: PrivateBytes,
    },
    Reject {
        private_data: PrivateBytes,
    },
    /// Set the minimum RNR timer, because the peer waits 655 ms after each RNR NAK with the
    /// connection manager's default.
    SetMinRnrTimer,
    Disconnect,
    /// Destroy the transport and the id. The next attempt makes new ones.
    Discard,
}

/// The kind of a [`CmOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmCall {
    AwaitTurn,
    CreateId,
    ResolveAddr,
    CreateTransport,
    ResolveRoute,
    Connect,
    Accept,
    Reject,
    SetMinRnrTimer,
    Disconnect,
    Discard,
}

impl CmOp {
    pub const fn call(&self) -> CmCall {
        match self {
            Self::AwaitTurn => CmCall::AwaitTurn,
            Self::CreateId => CmCall::CreateId,
            Self::ResolveAddr { .. } => CmCall::ResolveAddr,
            Self::CreateTransport => CmCall::CreateTransport,
            Self::ResolveRoute { .. } => CmCall::ResolveRoute,
            Self::Connect { .. } => CmCall::Connect,
            Self::Accept { .. } => CmCall::Accept,
            Self::Reject { .. } => CmCall::Reject,
            Self::SetMinRnrTimer => CmCall::SetMinRnrTimer,
            Self::Disconnect => CmCall::Disconnect,
            Self::Discard => CmCall::Discard,
        }
    }
}

/// An event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Established,
    /// The private data of a request have arrived, which had a frame of their own: the application
    /// can accept or reject.
    Requested,
    /// Something has arrived: deliver it. These events are in the order in which the peer sent.
    Arrived(Arrival),
    /// A control message of `len` bytes has arrived, which follows the frame's header in this
    /// receive buffer. Copy it, because [`Output::Repost`] follows. The driver reports that the
    /// application has taken the message with `take_control_message`.
    ControlMessage {
        buffer: u32,
        len: u32,
    },
    /// The peer wants to end the connection soon. This event occurs at most once.
    PeerLeaving,
    /// The peer has taken this number of further large messages, the oldest first. Their memory can
    /// be freed.
    Taken(u32),
    /// A Pong has arrived, after which `is_flushed` can return another result.
    Answered,
    /// A send that was refused as blocked can be retried: it succeeds, is blocked again, or fails
    /// with a cause. The same holds after [`Event::Established`].
    Writable,
    /// The connection has ended. This output is the last one, and the driver may destroy the
    /// transport after it. `delivered` is set if everything that was sent has arrived: the peer has
    /// acknowledged the Close, and has read all large messages.
    Disconnected {
        reason: CloseReason,
        delivered: bool,
    },
}

/// A message, immediate data or a Finish that arrived from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum Arrival {
    /// A message in a receive buffer. The buffer is posted again after `release`.
    Message { buffer: u32, offset: u32, len: u32 },
    /// Several messages, each with its length, in one receive buffer. The buffer is posted again
    /// after all of the messages are released.
    Batch { buffer: u32, len: u32, count: u32 },
    /// A large message that was read or copied whole. Its memory counts as held until the call of
    /// `release_large`.
    Large { id: u32, len: u64 },
    /// Immediate data of a write by which the peer wrote `len` bytes to this side's memory. The
    /// write consumed a receive buffer, which is posted again after `release`.
    Immediate {
        buffer: u32,
        imm_data: u32,
        len: u32,
    },
    /// The peer has sent its Finish: no messages follow.
    Finish,
}

/// A read for the driver to post as signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Read {
    /// The slot of the send ring that the read occupies.
    pub slot: u32,
    /// The id of the large message that contains the chunk. Large messages are started, delivered
    /// and taken in the order of their ids.
    pub id: u32,
    /// The offset in bytes of the chunk in the message.
    pub offset: u64,
    pub len: u64,
    pub remote_addr: u64,
    pub rkey: u32,
}

/// A fragment for the driver to copy out of its receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct FragmentCopy {
    /// The id of the large message that contains the fragment: see [`Read::id`].
    pub id: u32,
    /// The offset in bytes of the fragment in the message.
    pub offset: u64,
    /// The receive buffer, in which the fragment's bytes follow the frame's header.
    pub buffer: u32,
    pub len: u32,
}

/// A frame for the driver to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The slot of the send ring that the frame occupies.
    pub slot: u32,
    pub header: [u8; HEADER_LEN],
    /// Whether the driver posts the frame as signalled.
    pub signalled: bool,
}

impl Transmit {
    /// Whether the frame is a Ping or a Leave, whose Pong is reported as [`Event::Answered`].
    pub const fn is_ping(&self) -> bool {
        let kind = self.header[0];
        kind == Kind::Control(Control::Ping).number()
            || kind == Kind::Control(Control::Leave).number()
    }
}

/// The part of a batch that may be sent in one frame now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRoom {
    /// The maximum number of messages: at least 1.
    pub messages: usize,
    /// The maximum number of bytes, including [`PART_HEADER_LEN`](super::PART_HEADER_LEN) for each
    /// message.
    pub bytes: usize,
}

/// The reason why a message cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendRefused {
    /// There is no credit, or no free slot of the send ring. [`Event::Writable`] follows.
    Blocked,
    /// The message is longer than `limit`, the maximum length in bytes that the peer receives.
    TooLong { limit: u64 },
    /// This side has finished sending.
    Finished,
    /// The connection is ending or has ended.
    Closed(CloseReason),
}

/// The refusal of a connect request.
#[derive(Debug)]
pub struct Refusal {
    /// The private data of the rejection.
    pub private_data: PrivateBytes,
    pub reason: CloseReason,
}
