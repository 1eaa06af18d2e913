use std::{fmt, str::FromStr, time::Duration};

use anyhow::{Error, Result, bail};
use clap::ValueEnum;
use rdmsg::{Config, Polling, TransportChoice};
use serde::{Deserialize, Serialize};

use crate::measure::value_name;

/// The way in which one of our programs uses the library. [`Self::DEFAULT`] is the default
/// configuration with one connection.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Manner {
    pub(crate) library: Library,
    /// A bit set of the [`Way`]s in use: bit `1 << way` is set if `way` is in use.
    pub(crate) ways: u16,
    /// The number of messages per send call, for messages in one direction.
    pub(crate) batch: u32,
    /// The number of connections. The client uses them in rotation.
    pub(crate) connections: u32,
}

/// A difference from the default. Tables print the names in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Way {
    /// Threads sleep until the device reports an event. Counted programs use this way or the
    /// default.
    Event,
    /// Threads poll continuously.
    Busy,
    /// The transport is TCP.
    Tcp,
    /// The eager size equals the message size, so that no message is transferred with an RDMA READ.
    Eager,
    /// The program sends from registered memory, without a copy.
    Owned,
    /// A `Stream` transfers bytes instead of messages.
    Stream,
    /// The program waits in tasks of tokio's current-thread runtime instead of in blocked threads.
    Tasks,
    /// The configuration is for many connections, with small windows and buffers.
    Small,
    /// All connections share one pool of receives.
    Shared,
    /// Lost connections are resumed, so each send saves a copy of its message.
    Resume,
    /// The server waits with epoll for the event_fd of each connection.
    EventFd,
    /// The server's thread waits for the completions of a `Group`.
    Group,
}

/// The library that a program of this tool uses.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
pub(crate) enum Library {
    /// rdmsg
    Rdmsg,
    /// A TCP socket of std, with a length before each message
    Std,
    /// tokio's TCP socket with `LengthDelimitedCodec`
    Codec,
    /// A pair of sockets of libzmq over TCP
    Zeromq,
    /// A pair of sockets of libnng over TCP
    Nng,
    /// Verbs as rdmsg calls them, with credits, but without headers and locks: the lowest possible
    /// cost of an exchange of messages
    Verbs,
}

impl Library {
    pub(crate) fn is_over_tcp(self) -> bool {
        !matches!(self, Self::Rdmsg | Self::Verbs)
    }
}

/// With [`Way::Eager`], a ring has as many buffers as fit into this number of bytes, within the
/// limits below. The rings of two processes must fit into a guest's memory.
const RING_BYTES: usize = 8 << 20;

/// The minimum number of buffers in such a ring, so that several messages can be in flight. A ring
/// of long messages can therefore be larger than [`RING_BYTES`].
const LEAST_DEPTH: usize = 8;

/// The maximum number of buffers in the ring of receives, and in the ring of sends.
const MOST_RECEIVES: u16 = 32;
const MOST_SENDS: u16 = 16;

/// The number of buffers that a pool of shared receives needs per connection, as documented at
/// `Config::shared_receive`.
const SHARE: u32 = 34;

/// The time for which both sides try to resume a lost connection: see `Config::resume`.
const RESUME: Duration = Duration::from_secs(30);

impl Manner {
    pub(crate) const DEFAULT: Self = Self {
        library: Library::Rdmsg,
        ways: 0,
        batch: 1,
        connections: 1,
    };

    pub(crate) fn with(self, way: Way) -> Self {
        let ways = self.ways | 1 << way as u16;
        Self { ways, ..self }
    }

    pub(crate) fn has(self, way: Way) -> bool {
        self.ways & 1 << way as u16 != 0
    }

    pub(crate) fn is_over_tcp(self) -> bool {
        self.has(Way::Tcp) || self.library.is_over_tcp()
    }

    /// Returns the configuration for messages of `size` bytes.
    pub(crate) fn config(self, size: usize) -> Config {
        let mut config = Config::default();
        if self.has(Way::Event) {
            config.polling = Polling::Event;
        }
        if self.has(Way::Busy) {
            config.polling = Polling::Busy;
        }
        if self.has(Way::Resume) {
            config.resume = RESUME;
        }
        if self.has(Way::Eager) {
            let depth = u16::try_from(LEAST_DEPTH.max(RING_BYTES / size)).unwrap_or(u16::MAX);
            config.eager_size = u32::try_from(size).ok();
            config.receive_window = Some(depth.min(MOST_RECEIVES));
            config.send_depth = Some(depth.min(MOST_SENDS));
        }
        if self.has(Way::Small) {
            config.receive_window = Some(8);
            config.send_depth = Some(8);
            config.eager_size = Some(1024);
        }
        if self.has(Way::Shared) {
            // Add one share for the listener.
            config.shared_receive = Some(SHARE * (self.connections + 1));
        }
        config.transport = match self.has(Way::Tcp) {
            true => TransportChoice::Tcp,
            false => TransportChoice::Rdma,
        };
        config
    }
}

/// Writes the name that tables print.
impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&value_name(&self.library))?;
        let ways = Way::value_variants().iter();
        for way in ways.filter(|way| self.has(**way)) {
            write!(f, " {}", value_name(way))?;
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

/// Parses the name that tables print.
impl FromStr for Manner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut manner = Self::DEFAULT;
        for word in text.split(' ') {
            if let Ok(way) = Way::from_str(word, false) {
                manner = manner.with(way);
            } else if let Ok(library) = Library::from_str(word, false) {
                manner.library = library;
            } else if let Some(connections) = word.strip_prefix('×') {
                manner.connections = connections.parse()?;
            } else if let Ok(batch) = word.parse() {
                manner.batch = batch;
            } else if !["batches", "of"].contains(&word) {
                bail!("{text:?}: unknown word {word:?}");
            }
        }
        Ok(manner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_what_differs_from_the_default() {
        for name in [
            "rdmsg",
            "std",
            "codec batches of 16",
            "rdmsg busy batches of 16",
            "rdmsg event small shared event_fd ×100",
        ] {
            let manner: Manner = name.parse().unwrap();
            assert_eq!(manner.to_string(), name);
        }
        let manner: Manner = "rdmsg event ×100".parse().unwrap();
        assert!(manner.has(Way::Event) && !manner.has(Way::Busy));
        assert_eq!((manner.batch, manner.connections), (1, 100));
        assert!("rdmsg evnet".parse::<Manner>().is_err());
    }
}
