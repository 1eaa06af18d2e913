use super::message::Message;
use crate::{proto::CloseReason, transport_choice::Transport};

/// An event on a connection.
///
/// [`Endpoint::completions`](crate::Endpoint::completions) and
/// [`Endpoint::next_completion`](crate::Endpoint::next_completion) return them. Each message that
/// arrives is reported once. Each operation that was given an id, and was accepted, ends in exactly
/// one completion with that id: that of its success, or [`Failed`](Self::Failed). Ids are the
/// application's; they need not differ. On a connection with
/// [`Config::resume`](crate::Config::resume) an operation may instead end in
/// [`OutcomeUnknown`](Self::OutcomeUnknown).
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// A message arrived.
    Received(Message),
    /// A message that was sent with this id has arrived.
    ///
    /// The peer's device has acknowledged it or, if it is large, the peer's library has read it,
    /// and also every large message that was sent before it. On iWARP, whose devices do not report
    /// this, the peer's library has confirmed it. These completions come in the order of sending.
    /// They do not mean that the peer's application has received the message.
    Sent(u64),
    /// A one-sided [`read`](crate::OneSided::read) is done: the bytes are in the region.
    Read(u64),
    /// A one-sided [`write`](crate::OneSided::write) is done.
    ///
    /// The peer's device or, on iWARP, the peer's library has acknowledged the bytes.
    Written(u64),
    /// An atomic operation is done.
    ///
    /// The operation was a [`fetch_add`](crate::OneSided::fetch_add) or
    /// [`compare_swap`](crate::OneSided::compare_swap).
    Fetched {
        /// The operation's id.
        id: u64,
        /// The old value of the number in the peer's memory.
        value: u64,
    },
    /// The peer has written to this side's memory, and notifies this side of the write.
    ///
    /// The peer called [`write_with_imm`](crate::OneSided::write_with_imm).
    Immediate(Immediate),
    /// A control message arrived: the peer called
    /// [`send_control`](crate::Endpoint::send_control).
    ///
    /// It has no order with other messages, and may come before messages that were sent earlier. It
    /// is a copy, and occupies one of the 2 places for control messages until it is dropped; the
    /// peer can send no third one. [`Endpoint::recv`](crate::Endpoint::recv) keeps it for
    /// [`next_completion`](crate::Endpoint::next_completion). A [`Stream`](crate::Stream) has none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rdmsg::{Completion, Error};
    ///
    /// # fn serve(endpoint: rdmsg::Endpoint) -> Result<(), Error> {
    /// loop {
    ///     match endpoint.next_completion()? {
    ///         Completion::Received(request) => println!("{} bytes", request.len()),
    ///         Completion::Control(request) => println!("cancelled: {:?}", request.into_vec()),
    ///         Completion::Disconnected(reason) => break println!("{reason}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    Control(Message),
    /// The peer wants to end the connection soon: it called
    /// [`ask_to_leave`](crate::Endpoint::ask_to_leave).
    ///
    /// It comes at most once, and has no order with messages. Nothing else changes: both sides may
    /// send until one of them closes. A program that gets it begins no new work on the connection,
    /// and closes it after the answers that it waits for. [`Endpoint::recv`](crate::Endpoint::recv)
    /// keeps it for [`next_completion`](crate::Endpoint::next_completion). A
    /// [`Stream`](crate::Stream) has none.
    PeerLeaving,
    /// The peer has [finished](crate::Endpoint::finish): it has sent its last message.
    ///
    /// It comes after all messages of the peer, at most once. This side may continue to send.
    Finished,
    /// An operation with an id failed, or the connection ended before its outcome was known.
    Failed {
        /// The operation's id.
        id: u64,
        /// The reason.
        ///
        /// If the device failed the operation, this is the device's status, with which the
        /// connection ends.
        reason: CloseReason,
    },
    /// The connection was lost while a one-sided write or atomic operation was in flight.
    ///
    /// Only connections with [`Config::resume`](crate::Config::resume) have it, before
    /// [`Suspended`](Self::Suspended). The peer's device has carried out the operation, or has not,
    /// or has written a part of the bytes. The session does not repeat the operation, because that
    /// could undo a later change. Read the peer's memory after [`Resumed`](Self::Resumed), from a
    /// new region, and decide. A one-sided read that was in flight is [`Failed`](Self::Failed).
    OutcomeUnknown {
        /// The operation's id.
        id: u64,
        /// The reason of the loss.
        reason: CloseReason,
    },
    /// There is room for a send that was refused.
    ///
    /// After a `try_send`, or another call that does not wait, was refused as
    /// [full](crate::TrySendError::Full), this completion comes once, when another send can
    /// succeed, or would fail for another reason. It is not repeated before it was taken. A send
    /// that is tried after it may be refused again, and another `Room` follows then. Calls that
    /// wait cause no `Room`. [`Endpoint::recv`](crate::Endpoint::recv) drops it. Programs that have
    /// requested the [fd](crate::Interest::Writable) for the same event do not get it.
    Room,
    /// The connection was lost. Its session continues, and will get another connection.
    ///
    /// Only connections with [`Config::resume`](crate::Config::resume) have it. It comes after all
    /// messages that arrived before the loss. [`Resumed`](Self::Resumed) follows, or the end of the
    /// session. In between, calls that send or wait continue to wait.
    ///
    /// At most one pair of `Suspended` and `Resumed` waits to be taken: while it does, later losses
    /// are not reported. [`Endpoint::recv`](crate::Endpoint::recv) drops both, and a
    /// [`Stream`](crate::Stream) has neither.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rdmsg::{Completion, Config, Connector};
    ///
    /// # fn main() -> Result<(), rdmsg::Error> {
    /// let config = Config::default().with(|config| config.resume = Duration::from_secs(30));
    /// let endpoint = Connector::new().config(&config).connect("10.8.0.1:7471")?;
    /// loop {
    ///     match endpoint.next_completion()? {
    ///         Completion::Received(message) => println!("{} bytes", message.len()),
    ///         Completion::Suspended { reason } => println!("no connection: {reason}"),
    ///         Completion::Resumed {
    ///             number,
    ///             resent,
    ///             transport,
    ///         } => println!("resumption {number} over {transport}, {resent} messages sent again"),
    ///         Completion::Disconnected(reason) => break println!("{reason}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    Suspended {
        /// The reason of the loss.
        reason: CloseReason,
    },
    /// The session has another connection.
    ///
    /// It comes before all messages that arrive over the new connection, and only after
    /// [`Suspended`](Self::Suspended).
    Resumed {
        /// The number of resumptions so far, this one included:
        /// [`Statistics::resumes`](crate::Statistics::resumes).
        number: u64,
        /// The number of messages that this side sends again.
        resent: u64,
        /// The transport of the connection.
        transport: Transport,
    },
    /// The connection has ended. It comes once, after all other completions.
    Disconnected(CloseReason),
}

impl Completion {
    /// The id of the operation that this completion ends.
    pub(super) fn id(&self) -> Option<u64> {
        match self {
            Self::Sent(id)
            | Self::Read(id)
            | Self::Written(id)
            | Self::Fetched { id, .. }
            | Self::Failed { id, .. }
            | Self::OutcomeUnknown { id, .. } => Some(*id),
            Self::Received(_)
            | Self::Immediate(_)
            | Self::Control(_)
            | Self::PeerLeaving
            | Self::Room
            | Self::Finished
            | Self::Suspended { .. }
            | Self::Resumed { .. }
            | Self::Disconnected(_) => None,
        }
    }
}

/// The immediate data of a [`write_with_imm`](crate::OneSided::write_with_imm) of the peer.
///
/// The bytes that the peer wrote are in the region. It occupies one place of the window until it is
/// dropped, as a [`Message`] does.
#[derive(Debug)]
pub struct Immediate {
    imm_data: u32,
    len: u32,
    /// Held because its drop releases the place in the window.
    _place: Message,
}

impl Immediate {
    pub(super) fn new(imm_data: u32, len: u32, place: Message) -> Self {
        Self {
            imm_data,
            len,
            _place: place,
        }
    }

    /// Returns the immediate data: the number that the peer gave.
    #[must_use]
    pub fn imm_data(&self) -> u32 {
        self.imm_data
    }

    /// Returns the number of bytes that the peer wrote.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is not a collection")]
    pub fn len(&self) -> u32 {
        self.len
    }
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The first cause.
    pub(crate) reason: CloseReason,
    /// Whether the peer's library is known to have received everything that was sent.
    pub(crate) delivered: bool,
}
