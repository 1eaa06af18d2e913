//! The bounds of a search, and the mistakes that a search must detect.

/// The indices of the active side (`A`) and the passive side (`P`).
pub(super) const A: usize = 0;
pub(super) const P: usize = 1;

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// The number of messages that each side sends.
    pub(super) messages: [u8; 2],
    /// The messages of each side that are above the eager size, as a bit set. Bit 0 is the first
    /// message.
    pub(super) large: [u8; 2],
    pub(super) window: u8,
    /// The maximum number of faults. A fault breaks a connection, or loses or duplicates a request.
    pub(super) cuts: u8,
    /// The maximum number of times that a side gives up a working connection or attempt, in total
    /// for both sides.
    pub(super) suspicions: u8,
    /// The maximum number of times that the active side checks whether another path to the peer
    /// works. If the active side gives up its connection after a check, this also counts towards
    /// `suspicions`.
    pub(super) trials: u8,
    /// The maximum number of requests from another host that knows the identity of the session.
    pub(super) forged_requests: u8,
    /// The message number of each side's first message.
    pub(super) start: u32,
    pub(super) mistake: Option<Mistake>,
}

/// A mistake that a driver can make when it uses a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// The side with this index states the number of messages that it has received, although its
    /// previous connection can still deliver messages.
    CountBeforeFence(usize),
    /// Each side keeps only as many messages as the peer's window permits, and discards older
    /// messages.
    KeepWindow,
    /// Each side assumes that the peer has received a message as soon as the side's own device has
    /// sent the message.
    TrustDevice,
    /// Each side sends messages before it knows how many messages the peer has received.
    SendBeforeCount,
    /// Each side resends all kept messages, even if the peer has received some of them.
    RepeatEverything,
    /// The passive side accepts a request whose epoch is not higher than the epoch of an earlier
    /// accepted request.
    AcceptOldRequest,
    /// When a request arrives, the passive side gives up a working connection without checking it
    /// with a Ping.
    TrustRequest,
    /// The passive side records the epoch of a request that it refuses.
    TakeRefusedEpoch,
}

/// Creates a scope with these bounds. All other bounds are 0, and there is no mistake.
pub(super) const fn scope(
    messages: [u8; 2],
    large: [u8; 2],
    window: u8,
    [cuts, suspicions]: [u8; 2],
    start: u32,
) -> Scope {
    Scope {
        messages,
        large,
        window,
        cuts,
        suspicions,
        trials: 0,
        forged_requests: 0,
        start,
        mistake: None,
    }
}

/// Returns the scope with `trials` as the maximum number of checks of another path to the peer.
pub(super) const fn with_trials(trials: u8, scope: Scope) -> Scope {
    Scope { trials, ..scope }
}

impl Scope {
    pub(super) const fn with_forged_requests(self, forged_requests: u8) -> Self {
        Self {
            forged_requests,
            ..self
        }
    }

    /// Returns whether this message of the side `at` is above the eager size.
    pub(super) fn is_large(&self, at: usize, message: u8) -> bool {
        self.large[at] >> message & 1 == 1
    }

    /// Returns the maximum number of messages above the eager size that a side can have in flight.
    pub(super) fn most_large(&self) -> u32 {
        let most = self.large.map(u8::count_ones).into_iter().max();
        most.unwrap_or(0)
    }
}
