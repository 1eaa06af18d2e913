//! Control messages are short messages. Their order and their credit are separate from those of
//! data messages, so a control message can overtake data messages that wait for credit.
//!
//! Each direction numbers its control messages from 0. A grant is absolute, like a grant for data
//! frames: it is the total number of control messages that the peer may send. Each side grants the
//! sum of [`CONTROL_WINDOW`] and the number of messages that its application has taken. A grant of
//! `n` therefore shows that the application has taken all messages with numbers below
//! `n` − [`CONTROL_WINDOW`]. A sender keeps each message until a grant shows that the peer has
//! received the message.
//!
//! Numbers and grants continue on the next connection of a session. The sender resends all messages
//! that it has kept, and the receiver ignores messages that it already has. On a connection that
//! resumes a session, the number of the first message is therefore the newest grant that the
//! message's sender has received, minus [`CONTROL_WINDOW`].

use std::{collections::VecDeque, sync::Arc};

use super::{
    frame::Kind,
    reason::{CloseReason, Violation},
};

/// The maximum number of control messages that can be sent before the peer's application takes one.
pub const CONTROL_WINDOW: u32 = 2;

/// The maximum length in bytes of a control message. A smaller eager size lowers this limit.
pub const MAX_CONTROL_MESSAGE: u32 = 256;

/// The reason why a control message cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRefused {
    /// The peer's hello does not announce support for control messages.
    NotTaken,
    /// The message is longer than the limit.
    TooLong {
        /// The maximum length in bytes.
        limit: u32,
    },
    /// This side has sent all control messages that the peer has permitted. The peer permits more
    /// after its application has taken one of them.
    Full,
    /// The connection is ending or has ended.
    Closed(CloseReason),
}

/// The control messages of both directions.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct ControlMessages {
    /// [`CONTROL_WINDOW`], except in tests.
    window: u32,
    /// The maximum length in bytes of a message to the peer. `None` if the peer does not support
    /// control messages, or if the peer's hello is not known yet.
    longest: Option<u32>,
    /// The number of messages that the application has sent.
    sent: u32,
    /// The number of the next message to post on the current connection.
    next_to_post: u32,
    /// The total number of messages that the peer has permitted this side to send.
    limit: u32,
    /// The sent messages that no grant has confirmed as received, oldest first. The newest message
    /// has the number `sent` − 1.
    kept: VecDeque<Arc<[u8]>>,
    /// The number of the next message from the peer on the current connection. On a connection that
    /// resumes a session, the value is `None` until the peer's first message arrives.
    next: Option<u32>,
    /// The number of messages from the peer that were delivered to the application.
    received: u32,
    /// The number of messages from the peer that the application has taken.
    taken: u32,
    /// The newest grant that was sent to the peer.
    announced: u32,
}

impl ControlMessages {
    /// Creates the state of a new connection.
    pub(super) fn new() -> Self {
        Self::starting_at(0, CONTROL_WINDOW)
    }

    /// Creates the initial state. The counters begin at `start`, which is 0 except in tests.
    /// `window` is [`CONTROL_WINDOW`] except in tests.
    pub(super) fn starting_at(start: u32, window: u32) -> Self {
        Self {
            window,
            longest: None,
            sent: start,
            next_to_post: start,
            limit: start.wrapping_add(window),
            kept: VecDeque::new(),
            next: Some(start),
            received: start,
            taken: start,
            announced: start.wrapping_add(window),
        }
    }

    /// Sets the window, and restarts all counters at `start`. Must not be called while a message is
    /// in flight.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, start: u32, window: u32) {
        let longest = self.longest;
        *self = Self::starting_at(start, window);
        self.longest = longest;
    }

    /// Prepares for the session's next connection: the numbers continue, and all kept messages are
    /// posted again. Must be called before anything is sent on the next connection.
    pub(super) fn resume(&mut self) {
        //= PROTOCOL.md#control-messages
        //# On a connection that resumes a session, a side sends first all control messages that it
        //# does not know to be received, in their order and with their numbers.
        self.next_to_post = self.sent.wrapping_sub(self.kept.len() as u32);
        self.next = None;
    }

    /// Sets the maximum length in bytes of a message to the peer. `None` means that the peer does
    /// not support control messages. In that case, kept messages are not posted.
    pub(super) fn set_longest(&mut self, longest: Option<u32>) {
        self.longest = longest;
        if longest.is_none() {
            self.next_to_post = self.sent;
        }
    }

    /// Checks whether a message of `len` bytes can be sent now.
    fn check(&self, len: usize) -> Result<(), ControlRefused> {
        match self.longest {
            None => Err(ControlRefused::NotTaken),
            Some(limit) if len > limit as usize => Err(ControlRefused::TooLong { limit }),
            Some(_) if self.sent == self.limit => Err(ControlRefused::Full),
            Some(_) => Ok(()),
        }
    }

    /// Queues a message of the application for sending.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), ControlRefused> {
        self.check(message.len())?;
        self.kept.push_back(message.into());
        self.sent = self.sent.wrapping_add(1);
        Ok(())
    }

    /// Returns whether a message waits to be posted.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.next_to_post != self.sent
    }

    /// Returns the number and the content of the next message to post, and advances to the
    /// following message. Returns `None` if no message waits to be posted.
    pub(super) fn post(&mut self) -> Option<(u32, Arc<[u8]>)> {
        let number = self.next_to_post;
        let newer = self.sent.wrapping_sub(number) as usize;
        let message = self.kept.get(self.kept.len().checked_sub(newer)?)?;
        self.next_to_post = number.wrapping_add(1);
        Some((number, Arc::clone(message)))
    }

    /// Applies a grant from the peer.
    pub(super) fn granted(&mut self, limit: u32) -> Result<(), Violation> {
        //= PROTOCOL.md#control-messages
        //# A Permit must not be sent unless all control messages that were granted have
        //# arrived on this connection, and the grant has grown.
        let more = limit.wrapping_sub(self.limit);
        if self.next_to_post != self.limit || !(1..=self.window).contains(&more) {
            return Err(Violation::new(
                "permit",
                limit.into(),
                "1 or 2 above the previous permit, after all permitted messages were sent",
            ));
        }
        self.limit = limit;
        self.kept.drain(..more as usize);
        Ok(())
    }

    /// Checks and counts a message from the peer. Returns true if the message must be delivered,
    /// and false if it was already delivered over an earlier connection of the session.
    pub(super) fn receive(&mut self, number: u32) -> Result<bool, Violation> {
        //= PROTOCOL.md#control-messages
        //# Each number is one higher than the number of the previous control message.
        //= PROTOCOL.md#control-messages
        //# The first control message on a connection that resumes a session has the number *g* − 2,
        //# where *g* is the last grant that its sender knows. If the receiver expects the number
        //# *r* next and has last sent the grant *a*, then *r* ≤ *g* ≤ *a*.
        let is_next = match self.next {
            Some(next) => number == next,
            None => {
                let oldest = self.received.wrapping_sub(self.window);
                let newest = self.announced.wrapping_sub(self.window);
                number.wrapping_sub(oldest) <= newest.wrapping_sub(oldest)
            }
        };
        if !is_next {
            return Err(Violation::new(
                "control number",
                number.into(),
                "the number after that of the previous control message",
            ));
        }
        if self.next.is_none() {
            self.announced = number.wrapping_add(self.window);
        }
        if number == self.announced {
            return Err(Kind::ControlMessage.unexpected("no control message without credit"));
        }
        self.next = Some(number.wrapping_add(1));
        let is_new = number == self.received;
        self.received = self.received.wrapping_add(is_new.into());
        Ok(is_new)
    }

    /// Counts a message that the application has taken.
    pub(super) fn take(&mut self) {
        debug_assert!(
            self.taken != self.received,
            "the application must take only delivered messages"
        );
        self.taken = self.taken.wrapping_add(1);
    }

    /// Returns true if a grant must be sent: the peer has used up its credit, and this side can
    /// grant more.
    #[inline]
    pub(super) fn grant_due(&self) -> bool {
        self.next == Some(self.announced) && self.announced != self.grant()
    }

    fn grant(&self) -> u32 {
        self.taken.wrapping_add(self.window)
    }

    /// Returns the grant to send if one is due, and records it as announced.
    pub(super) fn take_grant(&mut self) -> Option<u32> {
        let due = self.grant_due();
        due.then(|| {
            self.announced = self.grant();
            self.announced
        })
    }

    #[cfg(test)]
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// Returns the number of delivered messages that the application has not taken.
    #[cfg(any(test, fuzzing))]
    pub(super) fn untaken(&self) -> u32 {
        self.received.wrapping_sub(self.taken)
    }

    /// Returns the number of messages that this side can send before the next grant.
    #[cfg(any(test, fuzzing))]
    pub(super) fn available(&self) -> u32 {
        self.limit.wrapping_sub(self.sent)
    }
}
