use crate::proto::Statistics;

/// What has passed through an [`Engine`](crate::Engine), and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStatistics {
    /// The number of connections now: being established, established, or being closed.
    pub connections: u64,
    /// The number of connections that have ended, or were never established.
    pub ended: u64,
    /// The sum of the statistics of all connections, past and present.
    pub all: Statistics,
    /// The number of bytes that are pinned now, or reserved, for reading large messages.
    ///
    /// Engines that share the budget are counted together. See
    /// [`EngineLimits::pinned`](crate::EngineLimits::pinned).
    pub pinned: u64,
    /// The number of bytes of large messages that are being read now, or held by the application,
    /// and of the copies of a stream's unread bytes.
    ///
    /// Engines that share the budget are counted together. See
    /// [`EngineLimits::held`](crate::EngineLimits::held).
    pub held: u64,
}
