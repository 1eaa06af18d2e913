use std::fmt;

use rdmsg::{Config, Polling, Transport};
use serde::{Deserialize, Serialize};

/// How our programs use the library. The default is the library's own, on one connection.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Manner {
    /// How threads wait.
    pub(crate) wait: Wait,
    /// `Config::eager_size`, if not the library's.
    pub(crate) eager_size: Option<u32>,
    /// Whether registered memory is sent as it is, without a copy.
    pub(crate) owned: bool,
    /// The number of messages that each call sends one way.
    pub(crate) batch: u32,
    /// `Config::hold_back`.
    pub(crate) hold_back: bool,
    /// Whether bytes go through a `Stream`, and not messages.
    pub(crate) stream: bool,
    /// Whether a task on tokio's current-thread runtime waits, and not a thread.
    pub(crate) tasks: bool,
    /// Whether it is over TCP.
    pub(crate) tcp: bool,
    /// Whether a TCP socket of std takes the place of this library.
    pub(crate) socket: bool,
    /// Whether the configuration is one for many connections.
    pub(crate) small: bool,
    /// Whether all connections share one pool of receives.
    pub(crate) shared: bool,
    /// Whether the server waits with epoll for the connections' event_fd.
    pub(crate) epoll: bool,
    /// The number of connections that the client uses, one after the other.
    pub(crate) connections: u32,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Wait {
    /// Poll for a moment, then sleep.
    Adaptive,
    /// Poll all the time.
    Busy,
    /// Sleep until the device has something: what to measure where instructions are counted.
    Event,
}

/// With a raised eager size each ring of buffers stays within this, so that two processes with
/// rings of large messages fit a guest.
const RING_BYTES: u32 = 8 << 20;

/// The least depth of such a ring, so that messages still overlap.
const LEAST_DEPTH: u16 = 8;

/// How many shared receives each connection may be sure of, as `Config::shared_receive` says.
const SHARE: u32 = 28;

impl Manner {
    pub(crate) const DEFAULT: Self = Self {
        wait: Wait::Adaptive,
        eager_size: None,
        owned: false,
        batch: 1,
        hold_back: false,
        stream: false,
        tasks: false,
        tcp: false,
        socket: false,
        small: false,
        shared: false,
        epoll: false,
        connections: 1,
    };

    pub(crate) const fn with(self, wait: Wait) -> Self {
        Self { wait, ..self }
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default().with_hold_back(self.hold_back);
        match self.wait {
            Wait::Adaptive => {}
            Wait::Busy => config.polling = Polling::Busy,
            Wait::Event => config.polling = Polling::Event,
        }
        if let Some(size) = self.eager_size {
            let depth = u16::try_from(RING_BYTES / size).unwrap_or(u16::MAX);
            config.eager_size = Some(size);
            config.receive_window = depth.clamp(LEAST_DEPTH, config.receive_window);
            config.send_depth = depth.clamp(LEAST_DEPTH, config.send_depth);
        }
        if self.small {
            config.receive_window = 8;
            config.send_depth = 8;
            config.eager_size = Some(1024);
        }
        if self.shared {
            // One more, which goes ahead of those that are measured.
            config.shared_receive = Some(SHARE * (self.connections + 1));
        }
        config.transport = if self.tcp {
            Transport::Tcp
        } else {
            Transport::Rdma
        };
        config
    }
}

/// A name for a table.
impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.socket {
            return f.write_str("std socket");
        }
        f.write_str("rdmsg")?;
        f.write_str(match self.wait {
            Wait::Adaptive => "",
            Wait::Busy => " busy",
            Wait::Event => " event",
        })?;
        let words = [
            (self.tcp, " tcp"),
            (self.eager_size.is_some(), " eager"),
            (self.owned, " owned"),
            (self.hold_back, " hold_back"),
            (self.stream, " stream"),
            (self.tasks, " tasks"),
            (self.small, " small"),
            (self.shared, " shared"),
            (self.epoll, " event_fd"),
        ];
        for (set, word) in words {
            if set {
                f.write_str(word)?;
            }
        }
        if self.batch != 1 {
            write!(f, " batches of {}", self.batch)?;
        }
        if self.connections != 1 {
            write!(f, " ×{}", self.connections)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_what_differs_from_the_default() {
        let socket = Manner {
            socket: true,
            ..Manner::DEFAULT
        };
        let batch = Manner {
            batch: 16,
            hold_back: true,
            eager_size: Some(4096),
            ..Manner::DEFAULT.with(Wait::Busy)
        };
        let many = Manner {
            small: true,
            shared: true,
            epoll: true,
            connections: 100,
            ..Manner::DEFAULT.with(Wait::Event)
        };
        assert_eq!(Manner::DEFAULT.to_string(), "rdmsg");
        assert_eq!(socket.to_string(), "std socket");
        assert_eq!(
            batch.to_string(),
            "rdmsg busy eager hold_back batches of 16"
        );
        assert_eq!(many.to_string(), "rdmsg event small shared event_fd ×100");
    }
}
