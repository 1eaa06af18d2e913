use std::{fmt, ops::AddAssign};

/// Counters and current memory usage of a connection, or of all connections of an engine.
///
/// The counters start at 0 when the connection is established. A call that returns statistics locks
/// the connection briefly, and makes no system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Messages that a `send` accepted.
    pub messages_sent: u64,
    /// Bytes of the messages sent.
    pub bytes_sent: u64,
    /// Messages above the eager size that were sent, and that the peer reads from this side's
    /// memory. Messages sent in fragments are not counted.
    pub large_sent: u64,
    /// Messages received, including messages that the application has not taken yet.
    pub messages_received: u64,
    /// Bytes of the messages received.
    pub bytes_received: u64,
    /// Messages above the eager size that this side reads from the peer's memory. Messages received
    /// in fragments are not counted.
    pub large_received: u64,
    /// One-sided operations started.
    pub operations: u64,
    /// Sends and one-sided operations that waited or were refused, because the peer had granted no
    /// further credit, no slot of the send ring was free, or the large messages in flight had
    /// reached their limit.
    pub stalls: u64,
    /// Grant frames sent. Grants in the headers of other frames are not counted.
    pub grants_sent: u64,
    /// Grant frames received. Grants in the headers of other frames are not counted.
    pub grants_received: u64,
    /// Pings sent, mostly for keepalive and for flushes. Leave frames are counted as Pings.
    pub pings_sent: u64,
    /// The number of connection losses after which the session was
    /// [resumed](https://docs.rs/rdmsg).
    pub resumes: u64,
    /// Messages that were resent after the session was resumed.
    pub resent: u64,
    /// The longest time in milliseconds between the detection of a connection loss and the
    /// resumption of the session, rounded up. For several connections, this is the maximum, not the
    /// sum.
    pub longest_gap_ms: u64,
    /// Receive buffers that are not posted now, because the application holds their messages or has
    /// not taken these messages yet. Messages above the eager size occupy no receive buffer.
    pub buffers_held: u64,
    /// Bytes of messages above the eager size that are being received now, or that the application
    /// holds.
    pub large_bytes_held: u64,
    /// Bytes of messages above the eager size that the peer has not read yet.
    pub large_bytes_exposed: u64,
}

impl Statistics {
    /// Statistics in which all values are 0.
    pub const ZERO: Self = Self {
        messages_sent: 0,
        bytes_sent: 0,
        large_sent: 0,
        messages_received: 0,
        bytes_received: 0,
        large_received: 0,
        operations: 0,
        stalls: 0,
        grants_sent: 0,
        grants_received: 0,
        pings_sent: 0,
        resumes: 0,
        resent: 0,
        longest_gap_ms: 0,
        buffers_held: 0,
        large_bytes_held: 0,
        large_bytes_exposed: 0,
    };

    /// Returns the counters, with 0 for the current memory usage.
    #[must_use]
    pub fn counters(self) -> Self {
        Self {
            buffers_held: 0,
            large_bytes_held: 0,
            large_bytes_exposed: 0,
            ..self
        }
    }
}

/// Excludes the statistics from a connection's hash. No decision depends on the statistics, so
/// connections that differ only in their statistics are equivalent.
#[cfg(test)]
impl std::hash::Hash for Statistics {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl AddAssign for Statistics {
    fn add_assign(&mut self, other: Self) {
        let Self {
            messages_sent,
            bytes_sent,
            large_sent,
            messages_received,
            bytes_received,
            large_received,
            operations,
            stalls,
            grants_sent,
            grants_received,
            pings_sent,
            resumes,
            resent,
            longest_gap_ms,
            buffers_held,
            large_bytes_held,
            large_bytes_exposed,
        } = other;
        self.messages_sent += messages_sent;
        self.bytes_sent += bytes_sent;
        self.large_sent += large_sent;
        self.messages_received += messages_received;
        self.bytes_received += bytes_received;
        self.large_received += large_received;
        self.operations += operations;
        self.stalls += stalls;
        self.grants_sent += grants_sent;
        self.grants_received += grants_received;
        self.pings_sent += pings_sent;
        self.resumes += resumes;
        self.resent += resent;
        self.longest_gap_ms = self.longest_gap_ms.max(longest_gap_ms);
        self.buffers_held += buffers_held;
        self.large_bytes_held += large_bytes_held;
        self.large_bytes_exposed += large_bytes_exposed;
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages ({} B, {} large) out, {} ({} B, {} large) in, {} operations, {} stalls, \
             {}/{} grants out/in; {} buffers and {} B large held, {} B exposed",
            self.messages_sent,
            self.bytes_sent,
            self.large_sent,
            self.messages_received,
            self.bytes_received,
            self.large_received,
            self.operations,
            self.stalls,
            self.grants_sent,
            self.grants_received,
            self.buffers_held,
            self.large_bytes_held,
            self.large_bytes_exposed
        )
    }
}
