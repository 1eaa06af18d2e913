//! The session of a connection: the offer in this side's hello, and the message counts with which
//! the [`Session`](crate::Session) continues after the connection is lost.

use super::{Connection, open::LostInClose};
use crate::{
    Clock, CloseReason, ResumeRequest, SessionOffer, SessionOver, Unconfirmed,
    hello::{Hello, LONG_REQUEST, RESUMES, SESSION},
    outbound::LARGE_IN_FLIGHT,
};

impl Connection {
    /// Parses the private data of a connect request. Returns the resume request in it, or `None` if
    /// the connect request does not resume a session.
    #[must_use]
    pub fn resume_request(private_data: &[u8]) -> Option<ResumeRequest> {
        let (hello, data) = Hello::parse(private_data).ok()?;
        //= PROTOCOL.md#sessions
        //# To resume, the active side sends a request with bits 4 and 5 of `features`, in which
        //# these 20 bytes take the place of the application's:
        //= PROTOCOL.md#long-requests
        //# A request that resumes a [session](#sessions) must not be long.
        let resumes = hello.features & (SESSION | RESUMES | LONG_REQUEST) == SESSION | RESUMES;
        resumes.then(|| ResumeRequest::parse(data)).flatten()
    }

    /// Returns whether the hellos of both sides offer a session.
    #[must_use]
    pub fn has_session(&self) -> bool {
        let theirs = self.peer_hello().map_or(0, |hello| hello.features);
        self.side.params.session != SessionOffer::None && theirs & SESSION != 0
    }

    /// Returns the message counts of the session that this side attempts to resume, if the peer has
    /// closed this session.
    #[must_use]
    pub fn session_over(&self) -> Option<SessionOver> {
        self.side.over
    }

    /// Removes the session offer from the reply. Must be called before the reply is sent.
    pub fn decline_session(&mut self) {
        self.side.params.session = SessionOffer::None;
    }

    /// Returns whether the session continues after the connection has ended with this reason. The
    /// session continues if the connection was lost. After a loss during the close handshake, the
    /// session continues only if this side does not know the result of the handshake.
    #[must_use]
    pub fn is_lost(&self, reason: &CloseReason) -> bool {
        reason.is_loss() || self.lost_in_close(reason) == LostInClose::Here
    }

    /// Returns true if the connection was lost during the close handshake, this side knows the
    /// result of the handshake, and the peer might not know the result.
    #[must_use]
    pub fn leaves_peer_in_doubt(&self, reason: &CloseReason) -> bool {
        self.lost_in_close(reason) == LostInClose::AtPeer
    }

    fn lost_in_close(&self, reason: &CloseReason) -> LostInClose {
        let closes = reason.is_clean() || matches!(reason, CloseReason::Truncated { .. });
        match self.opened() {
            Some(open) if closes => open.lost_in_close,
            Some(_) | None => LostInClose::No,
        }
    }

    /// Returns the number of messages that were delivered. A large message that was not read
    /// completely is not counted, and neither are the messages behind it.
    #[must_use]
    pub fn delivered_messages(&self) -> u32 {
        self.opened().map_or(0, |open| {
            let transfer = &open.transfer;
            // `inbound.undelivered()` counts a message whose fragments have not all arrived. The
            // message is subtracted here, because `messages` below does not count it.
            let incomplete = u64::from(transfer.inbound.missing().is_some());
            let undelivered = transfer.inbound.undelivered() - incomplete;
            let messages = transfer
                .recv_credit
                .received()
                .wrapping_sub(transfer.incomplete_frames);
            messages.wrapping_sub(undelivered as u32)
        })
    }

    /// Returns the number of delivered messages that the application has not released.
    #[must_use]
    pub fn held_messages(&self) -> u32 {
        self.opened().map_or(0, |open| {
            let held = open.transfer.recv_credit.held();
            held.saturating_sub(open.transfer.inbound.waiting())
        })
    }

    /// Records that the application has released a message whose receive is not reposted, because
    /// the connection is ending.
    pub fn give_up_receive(&mut self) {
        if let Some((open, _)) = self.open() {
            open.transfer.recv_credit.give_up();
        }
    }

    /// Sets the number of messages from earlier connections that the application still holds, and
    /// grants the rest of the window to the peer.
    pub fn set_held(&mut self, held: u32, now: impl Clock) {
        if let Some((open, side)) = self.open() {
            open.transfer.recv_credit.withhold(held);
            open.grant_or_delay(side, now);
        }
    }

    /// Returns bounds on the number of sent messages that the peer might not have received.
    #[must_use]
    pub fn unconfirmed(&self) -> Unconfirmed {
        let Some(open) = self.opened() else {
            return Unconfirmed::default();
        };
        let transfer = &open.transfer;
        Unconfirmed {
            messages: transfer.send_credit.unconfirmed(),
            large: transfer.outbound.untaken(),
            // The peer immediately reposts the receive that a Rendezvous used, and returns the
            // credit of the Rendezvous before the large message is read. The peer returns the
            // credit of any other message only after the message was delivered.
            max_messages: transfer.send_credit.window() + LARGE_IN_FLIGHT,
        }
    }
}
