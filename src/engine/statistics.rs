use crate::proto::Statistics;

/// What went through an [`Engine`](crate::Engine).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStatistics {
    /// Connections that there are now: being established, established, or being closed.
    pub connections: u64,
    /// Connections that have ended, those that were never established included.
    pub ended: u64,
    /// The sum of all connections' statistics; what is held is that of those that there are now.
    pub all: Statistics,
    /// Bytes that are pinned for reading large messages, or set aside for it, now: by all engines
    /// that share the budget. See [`EngineLimits::pinned`](crate::EngineLimits::pinned).
    pub pinned: u64,
    /// Bytes of large messages that are being read or held by the application now, by the same
    /// engines. See [`EngineLimits::held`](crate::EngineLimits::held).
    pub held: u64,
}
