//! The inputs and outputs of a [`Connection`](super::Connection).

use std::{
    collections::VecDeque,
    fmt,
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
    /// The attempt failed for a reason that the transport itself reports, as TCP does.
    Failed(&'a CloseReason),
    Rejected {
        reason: RejectReason,
        private_data: &'a [u8],
    },
    /// `reads` has a meaning on the active side only.
    Established {
        private_data: &'a [u8],
        reads: ReadDepth,
    },
    Disconnected,
    DeviceRemoval,
    AddrChange,
    TimewaitExit,
    /// An event that no state expects, or an unknown one.
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

/// A source of the time for inputs that rarely need it. Reading the clock takes about as long as
/// handling a message.
pub trait Clock: Copy {
    /// Returns the time.
    fn now(self) -> Instant;
}

/// A time that is known already.
impl Clock for Instant {
    fn now(self) -> Instant {
        self
    }
}

/// The work request of a failed completion.
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
}

/// The queue of a drain marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum DrainSide {
    Send,
    Recv,
}

/// An action for the driver, which performs the outputs in their order.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub enum Output {
    /// Make a connection manager call. A failure is reported with `handle_cm_failure`.
    Cm(CmOp),
    /// Post a control frame: a header without payload.
    Post(Transmit),
    /// Post this receive buffer again: its frame has been processed.
    Repost(u32),
    /// Post this receive buffer again and call `release`: its frame took a credit, and its content
    /// is not kept.
    Release(u32),
    /// Reserve memory for a large message of the peer with this id and length, and report it with
    /// `handle_memory`. The output may be repeated while there is no memory.
    Begin { id: u32, len: u64 },
    /// Prepare memory for this chunk of it, and report it with `handle_prepared`; the read follows
    /// then. The output may be repeated while there is no memory.
    Prepare { id: u32, offset: u64, len: u64 },
    /// Post the read of a chunk of the peer's large message. Its completion is reported with
    /// `handle_read`.
    Read(Read),
    /// Copy a fragment of a large message to its place, and report it with `handle_copied`. While
    /// there is no memory, this may be repeated.
    Copy(FragmentCopy),
    /// Post an empty write in this slot of the send ring, signalled. The peer's device notices that
    /// bytes have arrived, its library does not.
    Nudge { slot: u32 },
    /// Move the queue pair to its error state, and post a marker behind the last send and one
    /// behind the last receive.
    PostDrainMarkers,
    /// Call `next_timeout`: it has changed. After the end there is none, without this output.
    Timer,
    /// Report an event to the application.
    Event(Event),
    /// Write this line to the log when no lock is held.
    Note(Note),
}

/// The queue of outputs.
///
/// Most inputs lead to a single output, which bypasses the queue.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Outputs {
    /// Comes before `rest`.
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

    /// Requests that the driver logs this line, if the program logs lines of this level.
    pub(super) fn note(&mut self, level: Level, text: fmt::Arguments<'_>) {
        if let Some(note) = Note::new(level, text) {
            self.push(Output::Note(note));
        }
    }

    /// Has the driver log a warning of this topic, if its number allows that.
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

/// The driver carries all outputs out before the next input, so they are no part of a state.
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
    /// The topic of a line whose number has to be limited.
    pub topic: Option<Topic>,
    pub text: String,
}

/// The topics of lines that a peer or the network can trigger, whose rate is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The peer violated the protocol.
    Violation,
    /// The connection manager reported an event that has no meaning in the present state.
    UnexpectedEvent,
}

impl Note {
    /// Returns the note, or `None` without formatting it if the program logs nothing of its level.
    pub fn new(level: Level, text: fmt::Arguments<'_>) -> Option<Self> {
        (level <= log::max_level()).then(|| Self {
            level,
            topic: None,
            text: text.to_string(),
        })
    }
}

/// Properties of a new transport that the state machine depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct TransportTraits {
    pub capabilities: Capabilities,
    /// Whether the passive side must not send before it has received a frame, as on iWARP (RFC
    /// 5044, section 7.1): the peer may not process bytes that arrive right after the reply.
    pub active_speaks_first: bool,
    /// Whether a send or a write completes only when the peer's device has received it. On iWARP it
    /// completes when TCP has accepted its bytes, so that they may be overwritten.
    pub acknowledges_sends: bool,
    /// Whether a work request that is posted in the error state completes as flushed, after all
    /// others, so that it can serve as a marker. iWARP's drivers may refuse it, or never complete
    /// it.
    pub flushes: bool,
}

impl TransportTraits {
    /// A transport without restrictions.
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
    /// Call `take_turn` when there is time to establish another connection, the oldest first.
    AwaitTurn,
    /// Make an id.
    CreateId,
    ResolveAddr {
        timeout: Duration,
    },
    /// Create queue pair and buffers, post all receives, and report it with `handle_transport`.
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
    /// The connection manager's default means 655 ms for each RNR NAK.
    SetMinRnrTimer,
    Disconnect,
    /// Destroy transport and id. The next attempt gets new ones.
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
    /// Deliver an arrival. These events come in the order of sending.
    Arrived(Arrival),
    /// The peer has taken this number of further large messages, oldest first: their memory is
    /// free.
    Taken(u32),
    /// A pong has arrived: check `is_flushed`.
    Answered,
    /// A send that was refused as blocked may work now, or fail with a cause. The same holds after
    /// [`Event::Established`].
    Writable,
    /// The end: the last output, after which the transport may be destroyed. `delivered` is set if
    /// everything that was sent has arrived: the peer acknowledged the close after it, and has read
    /// all large messages.
    Disconnected {
        reason: CloseReason,
        delivered: bool,
    },
}

/// A message, or another arrival from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum Arrival {
    /// A message in a receive buffer, which is not posted until `release`.
    Message { buffer: u32, offset: u32, len: u32 },
    /// Several messages, with their lengths, in a receive buffer, which is not posted until all of
    /// them are released.
    Batch { buffer: u32, len: u32, count: u32 },
    /// A large message that was read or copied completely. Its memory counts as held until
    /// `release_large`.
    Large { id: u32, len: u64 },
    /// Immediate data with which the peer wrote `len` bytes to this side's memory. It consumed a
    /// receive buffer, which is not posted until `release`.
    Immediate {
        buffer: u32,
        imm_data: u32,
        len: u32,
    },
    /// The peer has finished.
    Finish,
}

/// A read to be posted, and signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Read {
    /// The slot of the send ring.
    pub slot: u32,
    /// The large message of which it is a chunk. They are numbered in the order in which they are
    /// started, delivered and taken.
    pub id: u32,
    /// The offset of the chunk in the message, in bytes.
    pub offset: u64,
    pub len: u64,
    pub remote_addr: u64,
    pub rkey: u32,
}

/// A fragment in a receive buffer, to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct FragmentCopy {
    /// The large message of which it is a part: see [`Read::id`].
    pub id: u32,
    /// The offset of its bytes in the message.
    pub offset: u64,
    /// The receive buffer, in which its bytes follow the header.
    pub buffer: u32,
    pub len: u32,
}

/// A frame to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The slot of the send ring.
    pub slot: u32,
    pub header: [u8; HEADER_LEN],
    /// Whether it is posted as signalled.
    pub signalled: bool,
}

impl Transmit {
    /// Whether it is a Ping, whose Pong [`Event::Answered`] reports.
    pub const fn is_ping(&self) -> bool {
        self.header[0] == Kind::Control(Control::Ping).number()
    }
}

/// The part of a batch that may be sent in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRoom {
    /// The number of messages: at least 1.
    pub messages: usize,
    /// The number of bytes, with [`PART_HEADER_LEN`](super::PART_HEADER_LEN) for each message.
    pub bytes: usize,
}

/// The reason that a message cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendRefused {
    /// There is no credit, or no slot: [`Event::Writable`] follows.
    Blocked,
    /// The message is longer than `limit`, the most that the peer receives.
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
