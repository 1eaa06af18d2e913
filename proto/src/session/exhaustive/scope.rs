//! The bounds of a search, and the mistakes that a search must find.

/// The indices of the active side and of the passive side.
pub(super) const A: usize = 0;
pub(super) const P: usize = 1;

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// The number of messages that each side sends.
    pub(super) messages: [u8; 2],
    /// The set of each side's messages that are above the eager size. Bit 0 is the first message.
    pub(super) large: [u8; 2],
    pub(super) window: u8,
    /// The number of times that a connection breaks, or that a request is lost or repeated.
    pub(super) cuts: u8,
    /// The number of times that a side gives up a connection or an attempt that works.
    pub(super) suspicions: u8,
    /// The number of times that the active side checks whether another way to the peer works. The
    /// active side may then leave its connection, which counts as one of the `suspicions`.
    pub(super) trials: u8,
    /// The number of requests from a stranger that knows the identity of the session.
    pub(super) strangers: u8,
    /// The message number of each side's first message.
    pub(super) start: u32,
    pub(super) mistake: Option<Mistake>,
}

/// A mistake that a driver makes in its use of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// This side states its count of received messages while its last connection can still deliver
    /// some.
    CountBeforeFence(usize),
    /// A side keeps only the last messages, up to the number of the peer's window.
    KeepWindow,
    /// A side treats each message as received when its device has sent it.
    TrustDevice,
    /// A side sends messages before it has the peer's count of received messages.
    SendBeforeCount,
    /// A side sends all kept messages again, including those that the peer has received.
    RepeatEverything,
    /// The passive side accepts a request whose epoch is not higher than the last one.
    AcceptOldRequest,
    /// The passive side gives up its connection because of a request, without a Ping.
    TrustRequest,
    /// The passive side records the epoch of a request that it refuses.
    TakeRefusedEpoch,
}

/// Makes a scope from these fields, without trials, strangers and mistakes.
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
        strangers: 0,
        start,
        mistake: None,
    }
}

/// Returns the scope with this number of checks of another way to the peer.
pub(super) const fn with_trials(trials: u8, scope: Scope) -> Scope {
    Scope { trials, ..scope }
}

impl Scope {
    pub(super) const fn with_strangers(self, strangers: u8) -> Self {
        Self { strangers, ..self }
    }

    /// Whether this message of the side `at` is above the eager size.
    pub(super) fn is_large(&self, at: usize, message: u8) -> bool {
        self.large[at] >> message & 1 == 1
    }

    /// Returns the maximum number of messages above the eager size in flight.
    pub(super) fn most_large(&self) -> u32 {
        let most = self.large.map(u8::count_ones).into_iter().max();
        most.unwrap_or(0)
    }
}
