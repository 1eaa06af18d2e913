use std::fmt;

/// The cause for which a send waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The peer has granted no further message.
    Window {
        /// The number of messages that may be in flight to the peer, or held there.
        window: u16,
    },
    /// All slots of the send ring are in flight.
    SendRing,
    /// The large messages in flight leave no room for another one.
    Large {
        /// The number of these messages.
        messages: u32,
        /// Their bytes.
        bytes: u64,
    },
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Window { window: 1 } => {
                f.write_str("the peer holds the only message of its window")
            }
            Self::Window { window } => {
                write!(f, "the peer holds all {window} messages of its window")
            }
            Self::SendRing => {
                f.write_str("all sends of its send_depth are in flight, and none is acknowledged")
            }
            Self::Large { messages: 1, bytes } => {
                write!(f, "the peer has not read a large message of {bytes} bytes")
            }
            Self::Large { messages, bytes } => write!(
                f,
                "the peer has not read {messages} large messages of {bytes} bytes"
            ),
        }
    }
}
