use std::fmt;

use rdmsg::{Config, Polling, TransportChoice};
use serde::{Deserialize, Serialize};

/// How our programs use the library. The default is the library's own, on one connection.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Manner {
    /// A bit for each [`Way`].
    pub(crate) ways: u16,
    /// The number of messages that each call sends one way.
    pub(crate) batch: u32,
    /// The number of connections that the client uses, one after the other.
    pub(crate) connections: u32,
}

/// A difference from the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Threads sleep until the device has an event. Counted programs do.
    Event,
    /// Threads poll all the time.
    Busy,
    /// It is over TCP.
    Tcp,
    /// The eager size is that of the message.
    Eager,
    /// Registered memory is sent as it is, without a copy.
    Owned,
    /// Bytes go through a `Stream`, and not messages.
    Stream,
    /// A task on tokio's current-thread runtime waits, and not a thread.
    Tasks,
    /// The configuration is one for many connections.
    Small,
    /// All connections share one pool of receives.
    Shared,
    /// The server waits with epoll for the connections' event_fd.
    EventFd,
    /// A TCP socket of std takes the place of this library.
    Socket,
}

/// The names of all ways, in a table.
const WAYS: [(Way, &str); 10] = [
    (Way::Event, "event"),
    (Way::Busy, "busy"),
    (Way::Tcp, "tcp"),
    (Way::Eager, "eager"),
    (Way::Owned, "owned"),
    (Way::Stream, "stream"),
    (Way::Tasks, "tasks"),
    (Way::Small, "small"),
    (Way::Shared, "shared"),
    (Way::EventFd, "event_fd"),
];

/// With a raised eager size each ring of buffers stays within this, so that two processes with
/// rings of large messages fit a guest.
const RING_BYTES: usize = 8 << 20;

/// The least depth of such a ring, so that messages still overlap.
const LEAST_DEPTH: u16 = 8;

/// How many shared receives each connection may be sure of, as `Config::shared_receive` says.
const SHARE: u32 = 28;

impl Manner {
    pub(crate) const DEFAULT: Self = Self {
        ways: 0,
        batch: 1,
        connections: 1,
    };

    pub(crate) const fn with(self, way: Way) -> Self {
        let ways = self.ways | 1 << way as u16;
        Self { ways, ..self }
    }

    pub(crate) const fn has(self, way: Way) -> bool {
        self.ways & 1 << way as u16 != 0
    }

    /// The configuration for messages of this size.
    pub(crate) fn config(self, size: usize) -> Config {
        let mut config = Config::default();
        if self.has(Way::Busy) {
            config.polling = Polling::Busy;
        }
        if self.has(Way::Event) {
            config.polling = Polling::Event;
        }
        if self.has(Way::Eager) {
            let depth = u16::try_from(RING_BYTES / size).unwrap_or(u16::MAX);
            config.eager_size = u32::try_from(size).ok();
            config.receive_window = depth.clamp(LEAST_DEPTH, config.receive_window);
            config.send_depth = depth.clamp(LEAST_DEPTH, config.send_depth);
        }
        if self.has(Way::Small) {
            config.receive_window = 8;
            config.send_depth = 8;
            config.eager_size = Some(1024);
        }
        if self.has(Way::Shared) {
            // With room for one more connection.
            config.shared_receive = Some(SHARE * (self.connections + 1));
        }
        config.transport = match self.has(Way::Tcp) {
            true => TransportChoice::Tcp,
            false => TransportChoice::Rdma,
        };
        config
    }
}

/// A name for a table.
impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has(Way::Socket) {
            return f.write_str("std socket");
        }
        f.write_str("rdmsg")?;
        for (_, name) in WAYS.iter().filter(|(way, _)| self.has(*way)) {
            write!(f, " {name}")?;
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
        let name = |ways: &[Way], batch, connections| {
            let manner = ways
                .iter()
                .fold(Manner::DEFAULT, |manner, way| manner.with(*way));
            let manner = Manner {
                batch,
                connections,
                ..manner
            };
            manner.to_string()
        };
        assert_eq!(name(&[], 1, 1), "rdmsg");
        assert_eq!(name(&[Way::Tcp, Way::Socket], 1, 1), "std socket");
        assert_eq!(name(&[Way::Busy], 16, 1), "rdmsg busy batches of 16");
        let many = [Way::EventFd, Way::Shared, Way::Small, Way::Event];
        assert_eq!(
            name(&many, 1, 100),
            "rdmsg event small shared event_fd ×100"
        );
    }
}
