use std::time::Duration;

/// How a thread waits for completions.
///
/// The waiting thread itself polls; no other thread stands in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polling {
    /// Polls for up to `spin`, then sleeps until the device raises an event.
    ///
    /// The latency is low while messages flow, and an idle connection uses no processor time. Each
    /// connection learns from its spins. Only a spin that finds something counts as a success;
    /// after a sleep, however short, nothing is known of spinning. A failed spin makes the next
    /// wait sleep without spinning, and each further one the next 3, 7, 15 and up to 255 waits. A
    /// success ends this backoff. A wait whose time limit is below `spin` spins all the same,
    /// because a sleep ends up to a millisecond late.
    ///
    /// If one processor is available, no wait spins: the spinning thread would keep the peer or the
    /// engine from running. The engine reads that number once, when it starts, by
    /// [`available_parallelism`](std::thread::available_parallelism), which regards the affinity of
    /// the thread that starts the engine and the quota of the control group.
    Adaptive {
        /// How long to poll before sleeping. 0 to 1 s, default 200 µs.
        ///
        /// The limit is eight times higher while a message above the eager size is in flight. These
        /// longer spins have a backoff of their own.
        spin: Duration,
    },
    /// Polls until there is something.
    ///
    /// The latency is the lowest, at the cost of one processor for each waiting thread.
    Busy,
    /// Sleeps at once.
    ///
    /// It uses the least processor time, at the cost of an interrupt and a wake-up for each
    /// message.
    Event,
}

impl Polling {
    /// Returns how a thread waits if this number of processors is available.
    pub fn on(self, processors: usize) -> Self {
        match self {
            Self::Adaptive { .. } if processors == 1 => Self::Event,
            Self::Adaptive { .. } | Self::Busy | Self::Event => self,
        }
    }
}

impl Default for Polling {
    fn default() -> Self {
        Self::Adaptive {
            spin: Duration::from_micros(200),
        }
    }
}
