use std::{fmt, ops::AddAssign};

/// What has gone through a connection, or through all of an engine's, and what is held right now.
///
/// Counters begin at 0 when the connection is established. Reading them takes the connection's lock for a moment and makes no system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Messages sent: accepted by a `send`.
    pub messages_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// How many of them were above the eager size, and so read by the peer.
    pub large_sent: u64,
    /// Messages received: handed to the application, or waiting for it.
    pub messages_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// How many of them were above the eager size.
    pub large_received: u64,
    /// One-sided operations started.
    pub operations: u64,
    /// How often a send or one-sided operation found no room, and so had to wait or was refused: no credit, no slot of the send ring, or too
    /// many large messages on their way.
    pub stalls: u64,
    /// Frames sent that carried nothing but a grant. Others ride on messages of the same direction.
    pub grants_sent: u64,
    /// Frames received that carried nothing but a grant.
    pub grants_received: u64,
    /// Probes sent: by keepalive and by flushes.
    pub pings_sent: u64,
    /// Receive buffers with the application now, and so not posted: messages up to the eager size that it, or its channel, holds.
    pub buffers_held: u64,
    /// Bytes of messages above the eager size that are being received, or are held by the application, now.
    pub large_bytes_held: u64,
    /// Bytes of messages above the eager size that the peer has not read yet.
    pub large_bytes_exposed: u64,
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
