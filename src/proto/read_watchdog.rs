use std::time::{Duration, Instant};

use crate::status::OsError;

/// The first wait before memory is looked for again; it doubles from try to try.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
/// The longest one.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// How long large messages may stand still: a message that is begun has memory that others wait
/// for.
///
/// Reads are looked at now and then, so that a piece that comes sets no timer anew. Those that
/// stand still are noticed after the timeout at the earliest, and after one and a half times as
/// long at the latest.
#[derive(Debug)]
pub(super) struct ReadWatchdog {
    timeout: Duration,
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    /// Nothing was being read at the last look.
    Off,
    /// The device reads.
    Reading {
        look: Instant,
        /// Pieces that had come at the last look.
        seen: u64,
        /// Whether none had come since the one before.
        still: bool,
    },
    /// The system has no memory for the next piece, or for the next message.
    OutOfMemory {
        error: OsError,
        until: Instant,
        retry: Instant,
        backoff: Duration,
    },
    /// It is being asked again.
    Retrying { until: Instant, backoff: Duration },
}

/// What a look came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// The system is to be asked for memory once more.
    Retry,
    /// Nothing has come for too long.
    Stalled,
    /// There has been no memory for too long.
    OutOfMemory(OsError),
}

impl ReadWatchdog {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            watch: Watch::Off,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.watch {
            Watch::Reading { look: at, .. } | Watch::OutOfMemory { retry: at, .. } => Some(at),
            Watch::Off | Watch::Retrying { .. } => None,
        }
    }

    /// Whether a read that is posted needs no word to [`reading`](Self::reading).
    pub(super) fn is_watching(&self) -> bool {
        matches!(self.watch, Watch::Reading { .. })
    }

    /// A read is posted; so many chunks have come before it.
    pub(super) fn read_posted(&mut self, chunks: u64, now: Instant) {
        match self.watch {
            Watch::Off | Watch::OutOfMemory { .. } | Watch::Retrying { .. } => {
                self.watch = Watch::Reading {
                    look: now + self.timeout / 2,
                    seen: chunks,
                    still: false,
                }
            }
            Watch::Reading { .. } => {}
        }
    }

    /// The system has no memory, which may pass. Says whether that has been so for too long.
    pub(super) fn out_of_memory(&mut self, error: OsError, now: Instant) -> Verdict {
        let (until, backoff) = match self.watch {
            Watch::Off | Watch::Reading { .. } => (now + self.timeout, FIRST_BACKOFF),
            Watch::OutOfMemory { until, backoff, .. } | Watch::Retrying { until, backoff } => {
                (until, (2 * backoff).min(LONGEST_BACKOFF))
            }
        };
        if now >= until {
            self.watch = Watch::Off;
            return Verdict::OutOfMemory(error);
        }
        self.watch = Watch::OutOfMemory {
            error,
            until,
            retry: (now + backoff).min(until),
            backoff,
        };
        Verdict::Fine
    }

    /// There was memory.
    pub(super) fn memory_found(&mut self) {
        match self.watch {
            Watch::OutOfMemory { .. } | Watch::Retrying { .. } => self.watch = Watch::Off,
            Watch::Off | Watch::Reading { .. } => {}
        }
    }

    /// Memory is about to be looked for again, because some was freed.
    pub(super) fn retrying(&mut self) {
        if let Watch::OutOfMemory { until, backoff, .. } = self.watch {
            self.watch = Watch::Retrying { until, backoff };
        }
    }

    /// The deadline may be past; so many chunks have come, and there are reads on their way or
    /// there are none.
    pub(super) fn check(&mut self, chunks: u64, reading: bool, now: Instant) -> Verdict {
        match self.watch {
            Watch::Reading { look, seen, still } if look <= now => {
                self.watch = Watch::Off;
                if reading && seen == chunks && still {
                    return Verdict::Stalled;
                }
                if reading {
                    self.watch = Watch::Reading {
                        look: now + self.timeout / 2,
                        seen: chunks,
                        still: seen == chunks,
                    };
                }
                Verdict::Fine
            }
            Watch::OutOfMemory { error, until, .. } if until <= now => {
                self.watch = Watch::Off;
                Verdict::OutOfMemory(error)
            }
            Watch::OutOfMemory { retry, .. } if retry <= now => {
                self.retrying();
                Verdict::Retry
            }
            Watch::Reading { .. }
            | Watch::OutOfMemory { .. }
            | Watch::Off
            | Watch::Retrying { .. } => Verdict::Fine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Looks when it is time to, as often as that is, with what has come by then.
    fn looks(
        read_watchdog: &mut ReadWatchdog,
        came: impl Fn(u32) -> u64,
        reading: bool,
    ) -> (u32, Verdict, Instant) {
        let mut last = Instant::now();
        for count in 0..20 {
            let Some(now) = read_watchdog.deadline() else {
                return (count, Verdict::Fine, last);
            };
            last = now;
            let verdict = read_watchdog.check(came(count), reading, now);
            if verdict != Verdict::Fine {
                return (count + 1, verdict, last);
            }
        }
        (20, Verdict::Fine, last)
    }

    #[test]
    fn reads_that_stand_still_are_noticed_in_time() {
        let start = Instant::now();
        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        read_watchdog.read_posted(0, start);
        assert_eq!(
            looks(&mut read_watchdog, |_| 0, true),
            (2, Verdict::Stalled, start + TIMEOUT)
        );

        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        read_watchdog.read_posted(0, start);
        let late = start + 3 * TIMEOUT / 2;
        assert_eq!(
            looks(&mut read_watchdog, |_| 1, true),
            (3, Verdict::Stalled, late)
        );
    }

    #[test]
    fn reads_that_go_on_are_left_alone_however_slow() {
        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        read_watchdog.read_posted(0, Instant::now());
        let came = |look: u32| u64::from(look.div_ceil(2));
        assert_eq!(looks(&mut read_watchdog, came, true).1, Verdict::Fine);
        assert_eq!(looks(&mut read_watchdog, came, false).1, Verdict::Fine);
        assert_eq!(read_watchdog.deadline(), None, "until the next one");
    }

    #[test]
    fn a_starved_message_asks_again_and_again_and_not_for_ever() {
        let start = Instant::now();
        let error = OsError::new("ibv_reg_mr", libc::ENOMEM);
        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        assert_eq!(read_watchdog.out_of_memory(error, start), Verdict::Fine);
        let mut tries = Vec::new();
        let end = loop {
            let now = read_watchdog.deadline().expect("it is tried again");
            match read_watchdog.check(0, false, now) {
                Verdict::Retry => tries.push(now - start),
                Verdict::OutOfMemory(why) => break (now - start, why),
                other => panic!("{other:?}"),
            }
            assert_eq!(read_watchdog.deadline(), None, "an answer comes first");
            assert_eq!(read_watchdog.out_of_memory(error, now), Verdict::Fine);
        };
        assert_eq!(end, (TIMEOUT, error));
        assert_eq!(tries[..3], [10, 30, 70].map(Duration::from_millis));
        assert!(tries.len() < 20, "ever more seldom");

        let mut read_watchdog = ReadWatchdog::new(TIMEOUT);
        assert_eq!(read_watchdog.out_of_memory(error, start), Verdict::Fine);
        read_watchdog.retrying();
        read_watchdog.memory_found();
        assert_eq!(read_watchdog.deadline(), None);
        assert_eq!(
            read_watchdog.out_of_memory(error, start + 2 * TIMEOUT),
            Verdict::Fine
        );
    }
}
