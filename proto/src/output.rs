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
    /// The connection attempt failed, and the transport reports the reason, as TCP does.
    Failed(&'a CloseReason),
    Rejected {
        reason: RejectReason,
        private_data: &'a [u8],
    },
    /// The connection is established. `reads` is meaningful on the active side only.
    Established {
        private_data: &'a [u8],
        reads: ReadDepth,
    },
    Disconnected,
    DeviceRemoval,
    AddrChange,
    TimewaitExit,
    /// An event with an unknown number, or an event that is unexpected in every state.
    Other(u32),
}

impl CmInput<'_> {
    /// Returns the event's name, for log lines.
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

/// A source of the current time. Reading the system's clock costs about the same as processing a
/// message. Functions that rarely need the time therefore take a `Clock`, and read it only if
/// necessary.
pub trait Clock: Copy {
    /// Returns the current time.
    fn now(self) -> Instant;
}

/// An `Instant` is a `Clock` for callers that have already read the time.
impl Clock for Instant {
    fn now(self) -> Instant {
        self
    }
}

/// A work request whose completion reports a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum Work {
    Send {
        slot: u32,
    },
    Recv {
        buffer: u32,
    },
    /// The read of a chunk of a large message from the peer, posted for [`Output::Read`].
    Read {
        slot: u32,
    },
    /// The invalidation of the key with which the peer has read a large message from this side.
    Invalidation,
}

/// The work queue on which a drain marker is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum DrainSide {
    Send,
    Recv,
}

/// An action that the driver must perform. The driver performs outputs in order.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub enum Output {
    /// Make a connection manager call. If the call fails, the driver reports the failure with
    /// `handle_cm_failure`.
    Cm(CmOp),
    /// Post a control frame: a header without payload.
    Post(Transmit),
    /// Post a control frame with this payload.
    PostWithPayload(Transmit, Arc<[u8]>),
    /// Repost this receive buffer, because its frame has been processed.
    Repost(u32),
    /// Repost this receive buffer and call `release`. The buffer contains a frame that consumed a
    /// credit, and the frame's content is no longer needed.
    Release(u32),
    /// Reserve memory for a large message from the peer with this id and length in bytes, and
    /// report the reservation with `handle_memory`. This output is repeated until memory is
    /// available.
    Begin { id: u32, len: u64 },
    /// Prepare the memory of this chunk of a large message, and report the prepared memory with
    /// `handle_prepared`. An [`Output::Read`] of the chunk follows. This output is repeated until
    /// memory is available.
    Prepare { id: u32, offset: u64, len: u64 },
    /// Post the read of a chunk of the peer's large message. The driver reports the completion with
    /// `handle_read`.
    Read(Read),
    /// Copy a fragment of a large message to the memory of the message, unless the fragment is
    /// already there, and report the copy with
    /// `handle_copied`. This output is repeated until memory is available.
    Copy(FragmentCopy),
    /// Post a signalled zero-length write in this slot of the send ring. The peer's device receives
    /// the write, but the peer's library is not notified.
    Nudge { slot: u32 },
    /// Move the queue pair to its error state. Then post one marker after the last send and one
    /// after the last receive. A marker completes after all earlier work requests in the same
    /// queue.
    PostDrainMarkers,
    /// Call `next_timeout` again, because the next deadline has changed. This output is omitted at
    /// the end of the connection, when there is no further deadline.
    Timer,
    /// Report an event to the application.
    Event(Event),
    /// Write this line to the log, without holding a lock.
    Note(Note),
}

/// The queue of outputs that the driver has not fetched.
///
/// Most inputs produce a single output, which is stored in `first` and needs no space in `rest`.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Outputs {
    /// The output that was pushed when the queue was empty. It precedes the outputs in `rest`.
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

    /// Queues this text as a log line, if the program logs lines of this level.
    pub(super) fn note(&mut self, level: Level, text: fmt::Arguments<'_>) {
        if let Some(note) = Note::new(level, text) {
            self.push(Output::Note(note));
        }
    }

    /// Queues a warning about this topic for the log. The driver limits the rate of such warnings.
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

    /// Removes the next output if it is [`Output::Post`], and returns its frame.
    pub(super) fn pop_post(&mut self) -> Option<Transmit> {
        let next = self.first.as_ref().or_else(|| self.rest.front());
        let Some(&Output::Post(transmit)) = next else {
            return None;
        };
        self.pop();
        Some(transmit)
    }
}

/// Excludes the outputs from a connection's hash. The driver performs all outputs before the next
/// input, so the queue is empty whenever a connection is hashed.
#[cfg(test)]
impl std::hash::Hash for Outputs {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {
        assert!(self.is_empty(), "the queue of outputs must be empty");
    }
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub level: Level,
    /// The topic of a line whose rate the driver limits. `None` if the rate is not limited.
    pub topic: Option<Topic>,
    pub text: String,
}

/// A topic of log lines whose rate is limited, because a peer or the network can trigger such lines
/// arbitrarily often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The peer violated the protocol.
    Violation,
    /// The connection manager reported an event that is unexpected in the connection's current
    /// state.
    UnexpectedEvent,
}

impl Note {
    /// Creates a log line. Returns `None`, without formatting the text, if the program logs no
    /// lines of this level.
    pub fn new(level: Level, text: fmt::Arguments<'_>) -> Option<Self> {
        (level <= log::max_level()).then(|| Self {
            level,
            topic: None,
            text: text.to_string(),
        })
    }
}

/// The properties of a transport that affect a connection's state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct TransportTraits {
    pub capabilities: Capabilities,
    /// Whether the active side must send the first frame, as on iWARP (RFC 5044, section 7.1). On
    /// iWARP, the active side could misread bytes that directly follow the reply. The passive side
    /// therefore sends nothing before it has received a frame.
    pub active_speaks_first: bool,
    /// Whether the completion of a send or a write proves that the peer's device has received the
    /// data. On iWARP, a send completes as soon as its buffer can be overwritten, because TCP has
    /// copied the bytes.
    pub acknowledges_sends: bool,
    /// Whether a work request completes with an error if it is posted while the queue pair is in
    /// the error state. If so, such a request can serve as a marker, because it completes after all
    /// earlier requests. On iWARP, the device driver can refuse such a request, or never complete
    /// it.
    pub flushes: bool,
    /// Whether the event DISCONNECTED occurs after this side has disconnected. Over TCP and over
    /// the in-memory transport, it does not occur, and no other event of the connection follows.
    pub reports_own_disconnect: bool,
}

impl TransportTraits {
    /// The traits of a transport with all capabilities and no restrictions.
    pub const UNRESTRICTED: Self = Self {
        capabilities: Capabilities::ALL,
        active_speaks_first: false,
        acknowledges_sends: true,
        flushes: true,
        reports_own_disconnect: true,
    };
}

/// A connection manager call, or an action that accompanies one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmOp {
    /// Call `begin_setup` as soon as the limit on concurrent setups permits another setup. Waiting
    /// connections proceed in the order in which they began to wait.
    AwaitSetupSlot,
    /// Create a connection manager id.
    CreateId,
    ResolveAddr {
        timeout: Duration,
    },
    /// Create the queue pair and the buffers, post all receives, and report the transport with
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
    /// Set the queue pair's minimum RNR timer. With the connection manager's default, the peer
    /// waits 655 ms after each RNR NAK.
    SetMinRnrTimer,
    Disconnect,
    /// Destroy the transport and the connection manager id. The next attempt creates new ones.
    Discard,
}

/// The kind of a [`CmOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmCall {
    AwaitSetupSlot,
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
            Self::AwaitSetupSlot => CmCall::AwaitSetupSlot,
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
    /// The private data of a request have arrived in a separate frame. The application can now
    /// accept or reject the request.
    Requested,
    /// A message, immediate data or a Finish has arrived and must be delivered. These events occur
    /// in the order in which the peer sent the messages.
    Arrived(Arrival),
    /// A control message of `len` bytes has arrived. The message follows the frame's header in this
    /// receive buffer. The driver must copy the message before it performs the following
    /// [`Output::Repost`], and must call `take_control_message` when the application has taken the
    /// message.
    ControlMessage {
        buffer: u32,
        len: u32,
    },
    /// The peer wants to end the connection soon. This event occurs at most once.
    PeerLeaving,
    /// The peer has read this number of large messages since the previous report. These are the
    /// oldest messages that the peer had not reported as read. The driver can free their memory.
    Taken(u32),
    /// A Pong has arrived. The result of `is_flushed` may have changed.
    Answered,
    /// A send that was refused with [`SendRefused::Blocked`] can be retried. The retry can
    /// succeed, be blocked again, or fail for another reason. Blocked sends can also be retried
    /// after [`Event::Established`].
    Writable,
    /// The connection has ended. No output follows this event, and the driver may then destroy the
    /// transport. `delivered` is true if the peer has received everything that this side sent: the
    /// peer has acknowledged the Close, and has read all large messages.
    Disconnected {
        reason: CloseReason,
        delivered: bool,
    },
}

/// A message, immediate data or a Finish that has arrived from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum Arrival {
    /// A message in a receive buffer. The driver reposts the buffer and then calls `release`.
    Message { buffer: u32, offset: u32, len: u32 },
    /// Several messages in one receive buffer, each with a length prefix. The buffer is reposted
    /// when all of these messages have been released.
    Batch { buffer: u32, len: u32, count: u32 },
    /// A large message that was read or copied completely. The message's memory remains in use
    /// until `release_large` is called.
    Large { id: u32, len: u64 },
    /// The immediate data of a write. The peer wrote `len` bytes to this side's memory, and the
    /// write consumed a receive buffer. The driver reposts the buffer and then calls `release`.
    Immediate {
        buffer: u32,
        imm_data: u32,
        len: u32,
    },
    /// The peer's Finish: no messages follow.
    Finish,
}

/// A read that the driver must post as a signalled work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Read {
    /// The slot of the send ring that the read occupies.
    pub slot: u32,
    /// The id of the large message that contains the chunk. Large messages are delivered and
    /// reported as taken in the order of their ids.
    pub id: u32,
    /// The offset in bytes of the chunk within the message.
    pub offset: u64,
    pub len: u64,
    pub remote_addr: u64,
    pub rkey: u32,
}

/// A fragment that the driver must copy out of its receive buffer, unless the fragment is already
/// in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct FragmentCopy {
    /// The id of the large message that contains the fragment: see [`Read::id`].
    pub id: u32,
    /// The number of messages in fragments that the peer began to send before this message, modulo
    /// 2³².
    pub number: u32,
    /// The offset in bytes of the fragment within the message.
    pub offset: u64,
    /// The receive buffer. The fragment's bytes follow the frame's header in this buffer, unless
    /// the fragment is in place.
    pub buffer: u32,
    pub len: u32,
    /// Whether the fragment is already in the memory of the message: see
    /// [`handle_fragment_in_place`](crate::Connection::handle_fragment_in_place).
    pub in_place: bool,
}

/// A frame that the driver must post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The slot of the send ring that the frame occupies.
    pub slot: u32,
    pub header: [u8; HEADER_LEN],
    /// Whether the driver must post the frame as a signalled work request.
    pub signalled: bool,
}

impl Transmit {
    /// Returns whether the frame is a Ping or a Leave. The peer answers either frame with a Pong,
    /// and [`Event::Answered`] reports the Pong.
    pub const fn is_ping(&self) -> bool {
        let kind = self.header[0];
        kind == Kind::Control(Control::Ping).number()
            || kind == Kind::Control(Control::Leave).number()
    }
}

/// The limits on the next batch, which is sent in one frame.
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
    /// The peer has granted no credit, no slot of the send ring is free, or too many large messages
    /// are in flight. [`Event::Writable`] follows when a retry can succeed.
    Blocked,
    /// The message is longer than `limit`, the maximum length in bytes that the peer accepts.
    TooLong { limit: u64 },
    /// This side has half-closed the connection with a Finish.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_taken_only_if_it_is_next() {
        let transmit = Transmit {
            slot: 3,
            header: [0; HEADER_LEN],
            signalled: false,
        };
        let mut outputs = Outputs::new();
        assert_eq!(outputs.pop_post(), None);
        for output in [
            Output::Post(transmit),
            Output::Timer,
            Output::Post(transmit),
        ] {
            outputs.push(output);
        }
        assert_eq!(outputs.pop_post(), Some(transmit));
        assert_eq!(outputs.pop_post(), None);
        assert!(matches!(outputs.pop(), Some(Output::Timer)));
        assert_eq!(outputs.pop_post(), Some(transmit));
        assert!(outputs.is_empty());
    }
}
