use super::message::Message;
use crate::{proto::CloseReason, transport_choice::Transport};

/// An event on a connection.
///
/// [`Endpoint::completions`](crate::Endpoint::completions) and
/// [`Endpoint::next_completion`](crate::Endpoint::next_completion) return completions. Each message
/// that arrives is reported once. Each accepted operation with an id ends in exactly one completion
/// with that id: the completion for its success, or [`Failed`](Self::Failed). The application
/// chooses the ids, which need not be unique. On a connection with
/// [`Config::resume`](crate::Config::resume), the completion of an operation may also be
/// [`OutcomeUnknown`](Self::OutcomeUnknown).
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// A message arrived.
    Received(Message),
    /// The message with this id has arrived at the peer's host.
    ///
    /// For a small message, this means that the peer's device has acknowledged it. For a large
    /// message, it means that the peer's library has read it. In both cases, the peer's library has
    /// read every large message that was sent earlier. iWARP devices do not report arrivals, so on
    /// iWARP the peer's library confirms each message. `Sent` completions are reported in the order
    /// of the sends. They do not mean that the peer's application has received the message.
    Sent(u64),
    /// A one-sided [`read`](crate::OneSided::read) has completed: the bytes are in the local
    /// region.
    Read(u64),
    /// A one-sided [`write`](crate::OneSided::write) has completed.
    ///
    /// The peer's device or, on iWARP, the peer's library has acknowledged the bytes.
    Written(u64),
    /// An atomic operation has completed.
    ///
    /// The operation was a [`fetch_add`](crate::OneSided::fetch_add) or
    /// [`compare_swap`](crate::OneSided::compare_swap).
    Fetched {
        /// The operation's id.
        id: u64,
        /// The value in the peer's memory before the operation.
        value: u64,
    },
    /// The peer has written to this side's memory and sent immediate data.
    ///
    /// The peer called [`write_with_imm`](crate::OneSided::write_with_imm).
    Immediate(Immediate),
    /// A control message arrived: the peer called [`send_control`](crate::Endpoint::send_control).
    ///
    /// Control messages are not ordered relative to other messages, and may overtake messages that
    /// were sent earlier. The message is a copy. It occupies one of the 2 slots for control
    /// messages until it is dropped; while both are occupied, the peer can send no further control
    /// message. [`Endpoint::recv`](crate::Endpoint::recv) leaves control messages for
    /// [`next_completion`](crate::Endpoint::next_completion). A [`Stream`](crate::Stream) discards
    /// them.
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
    /// This completion is reported at most once, and is not ordered relative to messages. The
    /// connection does not change: both sides may send until one of them closes it. A program that
    /// receives `PeerLeaving` should begin no new work on the connection, and should close the
    /// connection after it has answered all open requests.
    /// [`Endpoint::recv`](crate::Endpoint::recv) leaves `PeerLeaving` for
    /// [`next_completion`](crate::Endpoint::next_completion). A [`Stream`](crate::Stream) discards
    /// it.
    PeerLeaving,
    /// The peer has [finished](crate::Endpoint::finish): it has sent its last message.
    ///
    /// This completion is reported at most once, after all messages of the peer. This side may
    /// continue to send.
    Finished,
    /// An operation with an id failed, or its outcome was still unknown when the connection ended.
    Failed {
        /// The operation's id.
        id: u64,
        /// The reason.
        ///
        /// If the device reported the failure, the reason is the device's status, and the
        /// connection ends for the same reason.
        reason: CloseReason,
    },
    /// The connection was lost while a one-sided write or atomic operation was in flight.
    ///
    /// Only connections with [`Config::resume`](crate::Config::resume) report this completion. It
    /// precedes [`Suspended`](Self::Suspended). The peer's device may have executed the operation
    /// completely, in part (for a write), or not at all. The session does not repeat the operation,
    /// because a repetition could undo a later change. To learn the outcome, wait for
    /// [`Resumed`](Self::Resumed), and then read the peer's memory through a new region. A
    /// one-sided read that was in flight ends in [`Failed`](Self::Failed).
    OutcomeUnknown {
        /// The operation's id.
        id: u64,
        /// The reason for the loss.
        reason: CloseReason,
    },
    /// A send that was refused can be tried again.
    ///
    /// A `try_send` or another nonblocking call was refused as [full](crate::TrySendError::Full).
    /// `Room` is reported once, when another send would succeed or would fail for a different
    /// reason. While the application has not taken a `Room`, no further `Room` is reported. If a
    /// send is refused after the application has taken it, another `Room` follows. Blocking calls
    /// cause no `Room`. [`Endpoint::recv`](crate::Endpoint::recv) discards `Room`. A program that
    /// has requested the [fd](crate::Interest::Writable) for this event receives no `Room`.
    Room,
    /// The connection was lost. The session of the connection continues, and tries to establish
    /// another connection.
    ///
    /// Only connections with [`Config::resume`](crate::Config::resume) report this completion. It
    /// follows all messages that arrived before the loss. [`Resumed`](Self::Resumed) follows, or
    /// [`Disconnected`](Self::Disconnected) if the session ends. Until then, calls that send or
    /// wait continue to wait.
    ///
    /// The channel contains at most one pair of `Suspended` and `Resumed`. Until the application
    /// has taken this pair, further losses are not reported.
    /// [`Endpoint::recv`](crate::Endpoint::recv) discards both completions, and a
    /// [`Stream`](crate::Stream) reports neither.
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
        /// The reason for the loss.
        reason: CloseReason,
    },
    /// The session has a new connection.
    ///
    /// This completion follows [`Suspended`](Self::Suspended), and precedes all messages that
    /// arrive over the new connection.
    Resumed {
        /// The number of resumptions so far, including this one:
        /// [`Statistics::resumes`](crate::Statistics::resumes).
        number: u64,
        /// The number of messages that this side sends again.
        resent: u64,
        /// The transport of the new connection.
        transport: Transport,
    },
    /// The connection has ended. This is the last completion of a connection.
    Disconnected(CloseReason),
}

impl Completion {
    /// Returns the id of the operation that this completion reports.
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

/// The immediate data of a [`write_with_imm`](crate::OneSided::write_with_imm) by the peer.
///
/// The bytes that the peer wrote are in the region. Like a [`Message`], the value occupies one
/// credit of the window until it is dropped.
#[derive(Debug)]
pub struct Immediate {
    imm_data: u32,
    len: u32,
    /// Dropping this field returns the credit to the peer.
    _credit: Message,
}

impl Immediate {
    pub(super) fn new(imm_data: u32, len: u32, credit: Message) -> Self {
        Self {
            imm_data,
            len,
            _credit: credit,
        }
    }

    /// Returns the immediate data that the peer passed to `write_with_imm`.
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

/// The result of a connection that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The first reason for the end.
    pub(crate) reason: CloseReason,
    /// Whether the peer's library has confirmed that it received all sent messages.
    pub(crate) delivered: bool,
}
