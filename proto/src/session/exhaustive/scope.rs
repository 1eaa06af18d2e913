//! The bounds of a search, and the mistakes that it has to find.

/// The active side and the passive side.
pub(super) const A: usize = 0;
pub(super) const P: usize = 1;

/// The bounds of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// The number of messages that each side sends.
    pub(super) messages: [u8; 2],
    /// The messages above the eager size, as bits from the first message in bit 0.
    pub(super) large: [u8; 2],
    pub(super) window: u8,
    /// The number of connections that break, and of requests that get lost or are repeated.
    pub(super) cuts: u8,
    /// The number of times that a side gives up a connection or an attempt that works.
    pub(super) suspicions: u8,
    /// The number of times that the active side tries another way. It may then leave its working
    /// connection, which counts as one of the `suspicions`.
    pub(super) trials: u8,
    /// The number of requests of a third host that knows the session id.
    pub(super) strangers: u8,
    /// The number of each side's first message.
    pub(super) start: u32,
    pub(super) mistake: Option<Mistake>,
}

/// A mistake in how a driver uses the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// This side counts its messages while its last connection still delivers some.
    CountBeforeFence(usize),
    /// A side keeps the messages of one window of the peer only.
    KeepWindow,
    /// Each message counts as received when the device has sent it.
    TrustDevice,
    /// A side sends before it has the peer's number.
    SendBeforeCount,
    /// A side sends all kept messages again, including those that the peer has received.
    RepeatEverything,
    /// The passive side accepts a request that is older than the last one.
    AcceptOldRequest,
    /// The passive side gives up its working connection as soon as a request arrives.
    TrustRequest,
    /// The passive side records the epoch of a refused request.
    TakeRefusedEpoch,
}

/// Makes a scope of the fields in their order, without a mistake.
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

/// Returns the scope with this number of trials of other ways.
pub(super) const fn with_trials(trials: u8, scope: Scope) -> Scope {
    Scope { trials, ..scope }
}

impl Scope {
    pub(super) const fn with_strangers(self, strangers: u8) -> Self {
        Self { strangers, ..self }
    }

    /// Whether a message of a side is above the eager size.
    pub(super) fn is_large(&self, at: usize, message: u8) -> bool {
        self.large[at] >> message & 1 == 1
    }

    /// The greatest number of messages above the eager size that are in flight.
    pub(super) fn most_large(&self) -> u32 {
        let most = self.large.map(u8::count_ones).into_iter().max();
        most.unwrap_or(0)
    }
}
