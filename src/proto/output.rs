//! What goes into a [`Connection`](super::Connection) and what comes out.

use std::time::Duration;

use super::{CloseReason, ReadDepth, frame::HEADER_LEN, private::PrivateBytes};
use crate::status::{CmStatus, RejectReason};

/// A connection manager event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmInput<'a> {
    AddrResolved,
    AddrError(CmStatus),
    RouteResolved,
    RouteError(CmStatus),
    ConnectResponse,
    ConnectError(CmStatus),
    Unreachable(CmStatus),
    Rejected {
        reason: RejectReason,
        private_data: &'a [u8],
    },
    /// `reads` counts on the active side only.
    Established {
        private_data: &'a [u8],
        reads: ReadDepth,
    },
    Disconnected,
    DeviceRemoval,
    AddrChange,
    TimewaitExit,
    /// An event that no state expects, or that this version does not know.
    Other(u32),
}

/// Which work request a failed completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Send {
        slot: u32,
    },
    Recv {
        buffer: u32,
    },
    /// A chunk of the peer's large message, asked for by [`Output::Read`].
    Read {
        slot: u32,
    },
}

/// Which queue's marker came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainSide {
    Send,
    Recv,
}

/// What the state machine wants done. Outputs are to be carried out in their order.
#[derive(Debug)]
pub(crate) enum Output {
    /// A connection manager call. One that fails is told with `handle_cm_failure`.
    Cm(CmOp),
    /// Post a control frame: a header without payload.
    Post(Transmit),
    /// Post this receive buffer again: its frame has been handled.
    Repost(u32),
    /// Post this receive buffer again, and call `release`: its frame took credit, and nothing of it is kept.
    Release(u32),
    /// Find a place in memory for a large message of the peer's, of this id and length, and
    /// report it with `handle_memory`. As long as there is none, this may come again.
    Begin { id: u32, len: u64 },
    /// Make memory ready for this chunk of it, and report it with `handle_prepared`: the read
    /// follows then. As long as there is none, this may come again.
    Prepare { id: u32, offset: u64, len: u64 },
    /// Post a read of a chunk of a large message of the peer's. Its completion is to be reported with `handle_read`.
    Read(Read),
    /// Move the queue pair to its error state and post a marker behind the last send and one behind the last receive.
    PostDrainMarkers,
    /// `next_timeout` has changed, perhaps to none. The end takes it away without a word.
    Timer,
    /// Something for the application.
    Event(Event),
}

/// A connection manager call, or what goes with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CmOp {
    /// Call `take_turn` when there is time for another connection to be established, the oldest
    /// first.
    AwaitTurn,
    /// Make an id.
    CreateId,
    ResolveAddr {
        timeout: Duration,
    },
    /// Make queue pair and buffers and post all receives.
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
    /// The connection manager's default means 655 ms for each receiver-not-ready.
    SetMinRnrTimer,
    Disconnect,
    /// Destroy transport and id: the next attempt gets others.
    Discard,
}

/// The kind of a [`CmOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmCall {
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
    pub(crate) const fn call(&self) -> CmCall {
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

/// Something for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Established,
    /// Something is to be delivered. These come in the order in which the peer sent.
    Arrived(Arrival),
    /// The peer has read so many more of the large messages that were sent, oldest first: their memory is free.
    Taken(u32),
    /// The peer has answered a ping: see `is_flushed`.
    Answered,
    /// A send that was refused as blocked may work now, or be told why it never will. [`Event::Established`] says so, too.
    Writable,
    /// The end. Comes once, and nothing comes after it: the transport may go. `delivered` says whether all that was sent is known
    /// to have arrived: the peer acknowledged the close behind it, and has read all large messages.
    Disconnected {
        reason: CloseReason,
        delivered: bool,
    },
}

/// Something that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A message lies in a receive buffer, which stays out until `release`.
    Message { buffer: u32, offset: u32, len: u32 },
    /// A large message was read whole. Its memory counts as held until `release_large`.
    Large { id: u32, len: u64 },
    /// The peer wrote `len` bytes to this side's memory, and says so with this word. It took a receive buffer, which stays out until
    /// `release`.
    Immediate {
        buffer: u32,
        imm_data: u32,
        len: u32,
    },
}

/// A read to be posted, always signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    /// The slot of the send ring.
    pub(crate) slot: u32,
    /// Which large message it is a chunk of. They are numbered in the order in which they are begun, delivered and taken.
    pub(crate) id: u32,
    /// Where in the message the chunk lies.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// A frame to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transmit {
    /// The slot of the send ring.
    pub(crate) slot: u32,
    pub(crate) header: [u8; HEADER_LEN],
    /// Whether its completion is to be reported.
    pub(crate) signalled: bool,
}

/// Why a message is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SendRefused {
    /// No credit, or no slot: an [`Event::Writable`] will tell.
    Blocked,
    /// Longer than the peer takes.
    TooLong { limit: u64 },
    /// The connection is ending or has ended.
    Closed(CloseReason),
}

/// A connect request that is not taken.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// What to reject it with.
    pub(crate) private_data: PrivateBytes,
    pub(crate) reason: CloseReason,
}
