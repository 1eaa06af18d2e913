use std::fmt;

use clap::{Args, ValueEnum};
use rdmsg::{Config, Polling, Transport};

/// How our programs use the library. The default is the library's own, on one connection.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// How threads wait
    #[arg(long, value_enum, default_value_t)]
    pub(crate) wait: Wait,
    /// Config::eager_size, if not the library's
    #[arg(long)]
    pub(crate) eager_size: Option<u32>,
    /// Send registered memory as it is, without a copy
    #[arg(long)]
    pub(crate) owned: bool,
    /// How many messages each call sends, where they go one way
    #[arg(long, default_value_t = 1, conflicts_with = "owned")]
    pub(crate) batch: u32,
    /// With Config::hold_back
    #[arg(long)]
    pub(crate) hold_back: bool,
    /// Send the bytes through a Stream, and not as messages
    #[arg(long, conflicts_with_all = ["owned", "batch"])]
    pub(crate) stream: bool,
    /// Wait as a task on tokio's current-thread runtime, and not as a thread
    #[arg(long)]
    pub(crate) tasks: bool,
    /// Over TCP
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Over a TCP socket of std, without this library
    #[arg(long)]
    pub(crate) socket: bool,
    /// With a configuration for many connections
    #[arg(long)]
    pub(crate) small: bool,
    /// With as many messages under way as perftest has by its defaults
    #[arg(long, conflicts_with = "small")]
    pub(crate) deep: bool,
    /// One pool of receives for all connections
    #[arg(long)]
    pub(crate) shared: bool,
    /// The server waits with epoll for the connections' event_fd
    #[arg(long)]
    pub(crate) epoll: bool,
    /// How many connections the client uses, one after the other
    #[arg(long, default_value_t = 1)]
    pub(crate) connections: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// Poll for a moment, then sleep
    #[default]
    Adaptive,
    /// Poll all the time
    Busy,
    /// Sleep until the device has something: what to measure where instructions are counted
    Event,
}

/// With a raised eager size each ring of buffers stays within this, so that two processes with
/// rings of large messages fit a guest.
const RING_BYTES: u32 = 8 << 20;

/// The least depth of such a ring, so that messages still overlap.
const LEAST_DEPTH: u16 = 8;

/// How many shared receives each connection may be sure of, as `Config::shared_receive` says.
const SHARE: u32 = 28;

impl Default for Manner {
    fn default() -> Self {
        Self::DEFAULT
    }
}

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
        deep: false,
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
        if self.deep {
            config.receive_window = 512;
            config.send_depth = 128;
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

    /// The arguments that say the same on a command line.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let wait = match self.wait {
            Wait::Adaptive => None,
            Wait::Busy => Some("--wait=busy".to_owned()),
            Wait::Event => Some("--wait=event".to_owned()),
        };
        let flags = [
            (self.owned, "--owned"),
            (self.hold_back, "--hold-back"),
            (self.stream, "--stream"),
            (self.tasks, "--tasks"),
            (self.tcp, "--tcp"),
            (self.socket, "--socket"),
            (self.small, "--small"),
            (self.deep, "--deep"),
            (self.shared, "--shared"),
            (self.epoll, "--epoll"),
        ];
        let flags = flags.iter().filter(|(set, _)| *set);
        let mut words: Vec<String> = wait.into_iter().collect();
        words.extend(flags.map(|(_, flag)| (*flag).to_owned()));
        words.extend(self.eager_size.map(|size| format!("--eager-size={size}")));
        if self.batch != 1 {
            words.push(format!("--batch={}", self.batch));
        }
        if self.connections != 1 {
            words.push(format!("--connections={}", self.connections));
        }
        words
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
            (self.deep, " deep"),
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
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        manner: Manner,
    }

    #[test]
    fn arguments_say_the_same() {
        let owned = Manner {
            wait: Wait::Busy,
            eager_size: Some(4096),
            owned: true,
            ..Manner::default()
        };
        let stream = Manner {
            stream: true,
            tasks: true,
            tcp: true,
            ..Manner::default()
        };
        let many = Manner {
            wait: Wait::Event,
            small: true,
            shared: true,
            epoll: true,
            connections: 100,
            ..Manner::default()
        };
        let batch = Manner {
            batch: 16,
            hold_back: true,
            deep: true,
            ..Manner::default()
        };
        let socket = Manner {
            tcp: true,
            socket: true,
            ..Manner::default()
        };
        for manner in [Manner::default(), owned, stream, many, batch, socket] {
            let words = std::iter::once("bench".to_owned()).chain(manner.arguments());
            assert_eq!(CommandLine::parse_from(words).manner, manner);
        }
        assert_eq!(socket.to_string(), "std socket");
        assert_eq!(owned.to_string(), "rdmsg busy eager owned");
        assert_eq!(batch.to_string(), "rdmsg hold_back deep batches of 16");
        assert_eq!(many.to_string(), "rdmsg event small shared event_fd ×100");
    }
}
