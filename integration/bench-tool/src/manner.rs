use std::fmt;

use clap::{Args, ValueEnum};
use rdmsg::{Config, Polling};

/// How our programs use the library. The default is the library's own.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Send the bytes through a Stream, and not as messages
    #[arg(long, conflicts_with = "owned")]
    pub(crate) stream: bool,
    /// Wait as a task on tokio's current-thread runtime, and not as a thread
    #[arg(long)]
    pub(crate) tasks: bool,
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

impl Manner {
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
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
        config
    }

    /// The arguments that say the same on a command line.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let wait = match self.wait {
            Wait::Adaptive => None,
            Wait::Busy => Some("--wait=busy".to_owned()),
            Wait::Event => Some("--wait=event".to_owned()),
        };
        let words = [
            wait,
            self.eager_size.map(|size| format!("--eager-size={size}")),
            self.owned.then(|| "--owned".to_owned()),
            self.stream.then(|| "--stream".to_owned()),
            self.tasks.then(|| "--tasks".to_owned()),
        ];
        words.into_iter().flatten().collect()
    }
}

/// A name for a table.
impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rdmsg")?;
        f.write_str(match self.wait {
            Wait::Adaptive => "",
            Wait::Busy => " busy",
            Wait::Event => " event",
        })?;
        if self.eager_size.is_some() {
            f.write_str(" eager")?;
        }
        if self.owned {
            f.write_str(" owned")?;
        }
        if self.stream {
            f.write_str(" stream")?;
        }
        if self.tasks {
            f.write_str(" tasks")?;
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
        let all = Manner {
            wait: Wait::Busy,
            eager_size: Some(4096),
            owned: true,
            stream: false,
            tasks: false,
        };
        let event = Manner {
            wait: Wait::Event,
            ..all
        };
        let stream = Manner {
            stream: true,
            tasks: true,
            ..Manner::default()
        };
        for manner in [Manner::default(), all, event, stream] {
            let words = std::iter::once("bench".to_owned()).chain(manner.arguments());
            assert_eq!(CommandLine::parse_from(words).manner, manner);
        }
        assert_eq!(all.to_string(), "rdmsg busy eager owned");
    }
}
