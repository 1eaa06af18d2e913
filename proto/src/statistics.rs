use std::{fmt, ops::AddAssign};

/// Counters of a connection, or of all connections of an engine, and the amounts that are held.
///
/// Counters begin at 0 when the connection is established. Reading them takes the connection's lock
/// for a moment and makes no system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Messages sent, that is, accepted by a `send`.
    pub messages_sent: u64,
    /// Bytes of the messages sent.
    pub bytes_sent: u64,
    /// Messages sent above the eager size, which the peer reads.
    pub large_sent: u64,
    /// Messages received, whether the application has taken them or not.
    pub messages_received: u64,
    /// Bytes of the messages received.
    pub bytes_received: u64,
    /// Messages received above the eager size.
    pub large_received: u64,
    /// One-sided operations started.
    pub operations: u64,
    /// The number of times that a send or one-sided operation had to wait or was refused, for lack
    /// of credit, of a slot of the send ring, or of room among the large messages in flight.
    pub stalls: u64,
    /// Frames sent that carried only a grant. Other grants travel in frames with messages.
    pub grants_sent: u64,
    /// Frames received that carried only a grant.
    pub grants_received: u64,
    /// Pings sent by keepalive and by flushes.
    pub pings_sent: u64,
    /// The number of times that the connection was lost and [resumed](https://docs.rs/rdmsg).
    pub resumes: u64,
    /// Messages that were sent again after the connection was resumed.
    pub resent: u64,
    /// The longest time in milliseconds from the detection of a loss to the resumption. A sum has
    /// the longest of all connections.
    pub longest_gap_ms: u64,
    /// Receive buffers that are not posted now: messages up to the eager size that the application
    /// or its channel holds.
    pub buffers_held: u64,
    /// Bytes of messages above the eager size that are being received, or are held by the
    /// application, now.
    pub large_bytes_held: u64,
    /// Bytes of messages above the eager size that the peer has not read yet.
    pub large_bytes_exposed: u64,
}

impl Statistics {
    /// Counters of which each is 0.
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

    /// Returns the counters, and 0 for the values that are held now.
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

/// No decision depends on counters, so they do not distinguish states.
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
