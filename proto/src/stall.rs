use std::fmt;

/// The reason why a send must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The peer has not granted credit for another message.
    Window {
        /// The maximum number of messages that are in flight to the peer or that the peer's
        /// application holds.
        window: u16,
    },
    /// The send ring has too few free slots for the data.
    SendRing,
    /// Another large message would exceed the limit on the number or on the total length of the
    /// large messages in flight.
    Large {
        /// The number of large messages in flight.
        messages: u32,
        /// The total length in bytes of the large messages in flight.
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
            Self::SendRing => f.write_str(
                "all sends that send_depth permits are in flight, and none is acknowledged",
            ),
            Self::Large { messages: 1, bytes } => {
                write!(f, "the peer has not read a large message of {bytes} bytes")
            }
            Self::Large { messages, bytes } => write!(
                f,
                "the peer has not read {messages} large messages, {bytes} bytes in total"
            ),
        }
    }
}
