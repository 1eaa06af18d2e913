//! Flow control. A side grants credit only for receives that it has posted. Each data frame from
//! the peer therefore finds a posted receive, even if the application releases no messages.
//!
//! A grant is absolute: it is the total number of data frames that the peer may have sent since the
//! connection was established, modulo 2³². A batch counts as one data frame for each of its
//! messages. A repeated grant changes nothing, a later grant replaces an earlier one, and an
//! out-of-range grant is a protocol violation.

use super::{
    account::Account, control_messages::CONTROL_WINDOW, outbound::LARGE_IN_FLIGHT,
    reason::Violation,
};

/// The number of receives that are posted for control frames, in addition to the receives of the
/// window.
///
/// Control frames consume no credit, so they have separate receives. Each receive is reposted
/// as soon as its frame has been processed, and before this side sends anything that the frame
/// permits. Therefore this side can have at most the following unprocessed control frames from the
/// peer:
///
/// * **Grants: 2.** The peer sends a Grant frame when its limit has grown by at least half of its
///   window, rounded up, since the limit was last announced. Let g1 < g2 < g3 be the limits in
///   three such frames in a row. Then g3 ≥ g1 + window. The limit is at most the number of released
///   frames plus the window. So when the peer sends g3, it has received data frame number g1 from
///   this side. This side sends data frame g1 only after it has processed a limit of at least g1,
///   and the first of the three Grants was the first frame with such a limit. So this side has
///   processed the first Grant before the peer sends the third. The peer also sends a Grant frame,
///   for any growth, when this side has used up its credit. In that case, this side has sent the
///   data frame whose number is the previously announced limit. So this side has processed every
///   earlier Grant before the peer sends such a Grant. The argument therefore also holds if any of
///   the three Grants is sent for this reason.
/// * **Grants that report large messages as taken: 4**, one for each large message in flight,
///   because each such Grant reports at least one more message.
/// * **Ping or Leave: 1**, because the peer sends the next Ping or Leave only after the Pong for
///   the previous one has arrived.
/// * **Pong: 1**, because this side has at most one unanswered Ping or Leave.
/// * **Finish: 1**, **Close: 1**, **CloseAck: 1**, and **Abort or Failure: 1**. The peer sends each
///   of them at most once, and sends either an Abort or a Failure.
/// * **Control messages: 2**, the window. Let g be the newest control message grant that the peer
///   has processed, or the window on a new connection. The peer has sent only messages with numbers
///   below g. When this side sent the grant g, its application had taken all messages below
///   g − window. So only the messages from g − window to g − 1 can be unprocessed. This side sends
///   a later grant only after it has processed all messages below g on this connection. So all of
///   these messages are processed before the peer can send message g.
/// * **Permit: 1.** The peer sends a Permit only when this side has used up its credit for control
///   messages, and this side has more credit only after it has processed the Permit. The messages
///   that the Permit allows therefore arrive after the Permit was processed, and the peer sends the
///   next Permit only after these messages have arrived.
///
/// The last two items also hold on a connection that resumes a session. There, each side numbers
/// its first control message with the newest grant that it has processed, minus the window. Each
/// side counts only messages that have arrived on this connection.
pub const CONTROL_RECEIVES: u32 = 9 + LARGE_IN_FLIGHT + CONTROL_WINDOW;

/// The credit that the peer has granted to this side.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct SendCredit {
    /// The number of data frames sent.
    sent: u32,
    /// The total number of data frames that the peer has permitted this side to send.
    limit: u32,
    /// The peer's window in data frames. A valid grant exceeds `sent` by at most this number.
    window: u32,
}

impl SendCredit {
    /// Creates the initial state, in which the peer's hello has granted `credits` data frames to
    /// this side. The counters begin at `start`, which is 0 except in tests.
    pub(super) fn new(window: u16, credits: u16, start: u32) -> Self {
        Self {
            sent: start,
            //= PROTOCOL.md#hello
            //# A `credits` value above `window` counts as `window`.
            limit: start.wrapping_add(credits.min(window).into()),
            window: window.into(),
        }
    }

    /// Returns the number of data frames that this side may send now.
    #[inline]
    pub(super) fn available(&self) -> u32 {
        self.limit.wrapping_sub(self.sent)
    }

    /// Returns the peer's window in data frames.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// Returns an upper bound on the number of data frames that this side has sent and the peer has
    /// not received. The bound holds because a grant exceeds the number of frames that the peer has
    /// received by at most the window.
    #[inline]
    pub(super) fn unconfirmed(&self) -> u32 {
        self.window - self.available().min(self.window)
    }

    /// Consumes the credits of `count` messages that are being sent. The caller has checked that
    /// `available` is at least `count`.
    #[inline]
    pub(super) fn take(&mut self, count: u32) {
        debug_assert!(
            self.available() >= count,
            "the messages must not exceed the credit"
        );
        self.sent = self.sent.wrapping_add(count);
    }

    /// Applies the grant in a received frame. Returns true if the grant permits more data frames
    /// than the previous grant.
    #[inline]
    pub(super) fn granted(&mut self, limit: u32) -> Result<bool, Violation> {
        let more = limit.wrapping_sub(self.limit);
        //= PROTOCOL.md#credits
        //# A repeated grant changes nothing.
        if more == 0 {
            return Ok(false);
        }
        // The sum of two 32-bit numbers cannot overflow 64 bits.
        //= PROTOCOL.md#credits
        //# A grant must not be lower than an earlier one, nor exceed the number of data frames
        //# received by more than the granting side's `window`.
        if u64::from(self.available()) + u64::from(more) > u64::from(self.window) {
            return Err(Violation::new(
                "grant",
                limit.into(),
                "at least the previous grant, and at most the frames sent plus the window",
            ));
        }
        self.limit = limit;
        Ok(true)
    }
}

/// The credit that this side has granted to the peer.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct RecvCredit {
    window: u32,
    /// The minimum number of receives that are promised to the peer at any time.
    floor: u32,
    /// The number of data frames received.
    received: u32,
    /// The number of data frames whose receives have been reposted.
    released: u32,
    /// The total number of data frames for which this side has posted receives since the connection
    /// was established. `limit` − `released` receives are promised to the peer or contain messages
    /// from the peer. This difference is at most the window. It can be smaller than the window if
    /// connections share receives, if the application still holds messages from earlier
    /// connections, or if the connection is ending.
    limit: u32,
    /// The newest value of `limit` that was sent to the peer.
    announced: u32,
    /// Whether the peer has used up its credit since this side last reposted a receive.
    used_up: bool,
    /// Whether a grant may be delayed now, until the application has released more of the messages
    /// that it holds.
    may_delay_grants: bool,
    /// Whether `may_delay_grants` becomes true again once the application holds no messages.
    delays_grants: bool,
}

impl RecvCredit {
    /// Creates the initial state, in which this side's hello has granted `credits` data frames to
    /// the peer. The counters begin at `start`, which is 0 except in tests.
    pub(super) fn new(window: u16, credits: u16, start: u32) -> Self {
        let limit = start.wrapping_add(credits.into());
        Self {
            window: window.into(),
            floor: credits.into(),
            received: start,
            released: start,
            limit,
            announced: limit,
            used_up: false,
            may_delay_grants: true,
            delays_grants: true,
        }
    }

    /// Disables the delay of grants for the rest of the connection.
    pub(super) fn never_delay_grants(&mut self) {
        self.delays_grants = false;
        self.stop_delaying_grants();
    }

    /// Returns whether the peer has credit for `count` more messages.
    #[inline]
    pub(super) fn allows(&self, count: u32) -> bool {
        self.announced.wrapping_sub(self.received) >= count
    }

    /// Counts the `count` messages of a received frame. The caller has checked `allows(count)`.
    #[inline]
    pub(super) fn receive(&mut self, count: u32) {
        debug_assert!(self.allows(count), "the peer must have enough credit");
        self.received = self.received.wrapping_add(count);
        self.used_up |= self.announced == self.received;
    }

    /// Returns the number of data frames received.
    pub(super) fn received(&self) -> u32 {
        self.received
    }

    /// Returns the number of received data frames whose receives have not been reposted.
    #[inline]
    pub(super) fn held(&self) -> u32 {
        self.received.wrapping_sub(self.released)
    }

    /// Counts a reposted receive and raises the limit. Without an `account`, the limit grows by 1.
    /// With an `account`, the receive belongs to a shared pool, and the limit grows by the number
    /// of receives that the account promises to the peer.
    #[inline]
    pub(super) fn release(&mut self, account: Option<&Account>) {
        debug_assert!(
            self.released != self.received,
            "no more frames may be released than were received"
        );
        self.released = self.released.wrapping_add(1);
        let more = account.map_or(1, |account| self.trade(account));
        //= PROTOCOL.md#credits
        //# A side must have receives posted for all data frames that it has granted and not
        //# received, in addition to those for control frames.
        self.limit = self.limit.wrapping_add(more);
        self.used_up = false;
        self.may_delay_grants |= self.delays_grants & (self.held() == 0);
    }

    /// Exchanges the released receive for receives of the account. Returns the number of receives
    /// that the account promises to the peer in exchange.
    #[inline(never)]
    fn trade(&self, account: &Account) -> u32 {
        // If the peer has used up its credit, this side tries to double the number of promised
        // receives. Otherwise the number does not grow, so a peer that sends little does not occupy
        // receives that busy connections need.
        let twice = if self.used_up { 2 + self.promised() } else { 1 };
        let wanted = twice.min(self.window - self.promised());
        match self.promised().checked_sub(self.floor) {
            None => 1 + account.trade(0, 0, wanted - 1),
            Some(more) => account.trade(1, more, wanted),
        }
    }

    /// Counts a receive that is released but not reposted, because the connection is ending.
    #[inline]
    pub(super) fn give_up(&mut self) {
        debug_assert!(
            self.released != self.received,
            "no more frames may be released than were received"
        );
        self.released = self.released.wrapping_add(1);
    }

    /// Raises the number of promised receives to the window less `held`. `held` is the number of
    /// messages from earlier connections of the session that the application still holds. Changes
    /// nothing if at least this number of receives is already promised.
    pub(super) fn withhold(&mut self, held: u32) {
        let more = self.window.saturating_sub(held + self.promised());
        self.limit = self.limit.wrapping_add(more);
    }

    /// Returns the number of receives that are promised to the peer or contain messages from the
    /// peer.
    #[inline]
    pub(super) fn promised(&self) -> u32 {
        self.limit.wrapping_sub(self.released)
    }

    /// Returns the limit to put into a frame that is being sent, and records the limit as
    /// announced.
    #[inline]
    pub(super) fn announce(&mut self) -> u32 {
        self.announced = self.limit;
        self.announced
    }

    /// Returns true if a Grant frame is due. This is the case if the limit has grown by at least
    /// half the window, or if the limit has grown and the peer has used up its credit.
    ///
    /// While grants may be delayed, the second case also requires that the limit has grown by at
    /// least the number of messages that the application holds. Without this rule, each message
    /// that a slow application releases would cause a Grant frame.
    #[inline]
    pub(super) fn grant_due(&self) -> bool {
        let more = self.limit.wrapping_sub(self.announced);
        let enough = !self.may_delay_grants || more >= self.held();
        //= PROTOCOL.md#credits
        //# A Grant must not be sent unless (a) `grant` has grown by at least half of the granting
        //# side's window, rounded up, since it was last sent in any frame, (b) the peer has used up
        //# everything that was granted, or the Grant reports large messages as taken.
        more >= self.window.div_ceil(2) || (enough && self.is_awaited())
    }

    /// Returns true if no Grant frame is due or delayed: the limit has grown by less than half the
    /// window, and the peer still has credit.
    #[inline]
    pub(super) fn needs_no_grant(&self) -> bool {
        let more = self.limit.wrapping_sub(self.announced);
        more < self.window.div_ceil(2) && self.announced != self.received
    }

    /// Returns true if the peer has used up its credit, and this side delays the next grant until
    /// the application releases more messages. The caller must limit the delay, because the
    /// application can hold messages forever.
    #[inline]
    pub(super) fn delays_grant(&self) -> bool {
        self.is_awaited() && !self.grant_due()
    }

    /// Returns the newest limit that was sent to the peer.
    pub(super) fn announced(&self) -> u32 {
        self.announced
    }

    /// Disables the delay of grants. The delay is permitted again once the application holds no
    /// message, except after [`never_delay_grants`](Self::never_delay_grants).
    pub(super) fn stop_delaying_grants(&mut self) {
        self.may_delay_grants = false;
    }

    /// Returns whether the peer has used up its credit and this side can grant more.
    #[inline]
    fn is_awaited(&self) -> bool {
        self.limit != self.announced && self.announced == self.received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_idempotent_and_bounded() {
        for start in [0, u32::MAX - 2] {
            let mut credit = SendCredit::new(4, 4, start);
            for left in (0..4).rev() {
                credit.take(1);
                assert_eq!(credit.available(), left);
            }
            let limit = start.wrapping_add(6);
            assert_eq!(credit.granted(limit), Ok(true));
            assert_eq!(
                credit.granted(limit),
                Ok(false),
                "a repeated grant changes nothing"
            );
            assert_eq!(credit.available(), 2);
            assert!(
                credit.granted(limit.wrapping_sub(1)).is_err(),
                "a lower grant is a violation"
            );
            assert!(
                credit.granted(start.wrapping_add(9)).is_err(),
                "a grant above the window is a violation"
            );
            assert_eq!(credit.granted(start.wrapping_add(8)), Ok(true));
        }
    }

    #[test]
    fn credits_above_the_window_count_as_the_window() {
        for (credits, available) in [(0, 0), (7, 7), (8, 8), (9, 8), (u16::MAX, 8)] {
            let mut credit = SendCredit::new(8, credits, u32::MAX);
            assert_eq!(credit.available(), available, "{credits}");
            // The window limits the next grant, even if `credits` in the hello exceeds the window.
            assert_eq!(credit.granted(7), Ok(available < 8), "{credits}");
        }
    }

    #[test]
    fn a_grant_of_its_own_is_due_at_half_the_window() {
        for (window, due_after) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (64, 32)] {
            let mut credit = RecvCredit::new(window, window, u32::MAX - 1);
            for released in 1..=due_after {
                assert!(
                    !credit.grant_due(),
                    "window {window}: no Grant is due before release {released}"
                );
                credit.receive(1);
                credit.release(None);
            }
            assert!(credit.grant_due(), "window {window}: a Grant is due");
            credit.announce();
            assert!(!credit.grant_due());
        }
    }

    #[test]
    fn a_peer_without_credit_gets_the_smallest_grant() {
        let mut credit = RecvCredit::new(8, 8, u32::MAX - 3);
        for _ in 0..8 {
            credit.receive(1);
            assert!(!credit.grant_due(), "no receive was released");
        }
        credit.release(None);
        assert!(!credit.grant_due() && credit.delays_grant());
        credit.stop_delaying_grants();
        assert!(credit.grant_due());
        credit.announce();
        assert!(!credit.grant_due());
        credit.release(None);
        assert!(!credit.grant_due(), "the peer still has one credit");
        credit.receive(1);
        assert!(credit.grant_due(), "the peer has used up its credit");
    }

    #[test]
    fn messages_of_earlier_connections_narrow_the_window() {
        let mut credit = RecvCredit::new(8, 3, u32::MAX);
        credit.withhold(5);
        assert_eq!(credit.promised(), 3, "the hello grants 3 credits");
        credit.receive(2);
        credit.withhold(4);
        assert_eq!((credit.promised(), credit.held()), (4, 2));
        credit.withhold(6);
        assert_eq!(credit.promised(), 4, "a promise is never revoked");
        credit.withhold(0);
        assert_eq!(credit.promised(), 8);
        credit.give_up();
        assert_eq!((credit.promised(), credit.held()), (7, 1));
    }

    #[test]
    fn peer_may_send_announced_limit() {
        let mut credit = RecvCredit::new(2, 2, 0);
        assert!(credit.allows(2) && !credit.allows(3));
        credit.receive(2);
        assert!(!credit.allows(1));
        credit.release(None);
        assert!(!credit.allows(1), "the new limit is not announced yet");
        credit.announce();
        assert!(credit.allows(1));
    }

    #[test]
    fn promises_do_not_exceed_shared_receives() {
        let account = Account::new(76);
        assert!(account.open(8));
        let mut credit = RecvCredit::new(8, 2, u32::MAX - 1);
        credit.receive(1);
        credit.receive(1);
        assert!(!credit.allows(1), "only the minimum is promised at first");
        credit.release(Some(&account));
        assert_eq!(
            credit.promised(),
            4,
            "the number of promised receives doubles"
        );
        assert!(credit.grant_due(), "the peer has used up its credit");
        credit.announce();
        credit.release(Some(&account));
        assert!(credit.promised() <= 8);
        // Other connections use all spare receives, and one more connection is opened.
        while account.trade(0, 0, 8) > 0 {}
        assert!(account.open(8));
        for _ in 0..20 {
            credit.announce();
            credit.receive(1);
            credit.release(Some(&account));
            assert!(credit.promised() >= 2, "at least the minimum is promised");
        }
        assert_eq!(credit.promised(), 4, "the pool has few spare receives");
    }
}
